/* What the plug-in "needs" depends on. */
__attribute__((visibility("default"))) int dt_test_dependency(void);

int dt_test_dependency(void)
{
    return 42;
}

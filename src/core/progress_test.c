#include "core/test.h"

#include "core/progress.h"

static void looks_like_tqdm(void **state)
{
    (void)state;
    char text[256];
    dtp_progress_format(text, sizeof text, "Train", 0, 5, 300, 16.0, NULL, 0);
    assert_string_equal(text, "Train:   2%|▏         | 5/300 [00:16<15:44,  3.20s/it]");
    dtp_progress_format(text, sizeof text, "Val", 0, 0, 8, 0.0, NULL, 0);
    assert_string_equal(text, "Val:   0%|          | 0/8 [00:00<?, ?it/s]");
    dtp_progress_format(text, sizeof text, "Train", 0, 300, 300, 150.0, "512 tok/s", 0);
    assert_string_equal(text, "Train: 100%|██████████| 300/300 [02:30<00:00,  2.00it/s, 512 tok/s]");
    /* nobody knows how many rows a file has */
    dtp_progress_format(text, sizeof text, "Infer", 0, 12, 0, 3.0, "x", 0);
    assert_string_equal(text, "Infer: 12it [00:03,  4.00it/s, x]");
    /* a resumed run: the rate counts the steps of this process */
    dtp_progress_format(text, sizeof text, "Train", 100, 110, 200, 7200.0, NULL, 0);
    assert_string_equal(text, "Train:  55%|█████▌    | 110/200 [2:00:00<18:00:00, 720.00s/it]");
}

static void fills_the_terminal(void **state)
{
    (void)state;
    char text[512];
    dtp_progress_format(text, sizeof text, "T", 0, 1, 1, 1.0, NULL, 60);
    int columns = 0;
    for (const char *at = text; *at; at++)
        columns += ((unsigned char)*at & 0xC0) != 0x80;
    assert_int_equal(columns, 60);
    /* narrower than its own text, and an empty total: still a line */
    dtp_progress_format(text, sizeof text, "T", 0, 0, 0, 1.0, NULL, 5);
    assert_string_equal(text, "T: 0it [00:01, ?it/s]");
}

static void plain_lines_elsewhere(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    dt_progress p;
    dtp_progress_start(&p, file, false, "Train", 0, 4);
    for (int i = 1; i <= 4; i++)
        dtp_progress_update(&p, i, NULL); /* within ten seconds: nothing */
    assert_int_equal(ftell(file), 0);
    dtp_progress_clear(&p);
    dtp_progress_finish(&p, NULL);
    rewind(file);
    char line[256];
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "Train: 100%|"));
    assert_null(strchr(line, '\r'));
    assert_null(strchr(line, '\033'));
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(looks_like_tqdm), cmocka_unit_test(fills_the_terminal),
                                       cmocka_unit_test(plain_lines_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

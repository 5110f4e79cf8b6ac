#include "cli/template_args.h"

static const dt_arg_spec specs[] = {
    {"system", DT_ARG_STRING, NULL, NULL, "System text of rows that bring none."},
    {"loss_scale", DT_ARG_STRING, "default", NULL,
     "Which tokens are targets: default (every assistant turn), last_round, or all; +ignore_empty_think may follow."},
    {"enable_thinking", DT_ARG_BOOL, NULL, NULL, "Only changes the prompt of generation."},
    {"preserve_thinking", DT_ARG_BOOL, NULL, NULL,
     "Keep the reasoning of earlier turns. Default: yes, unless loss_scale is last_round."},
    {"add_non_thinking_prefix", DT_ARG_BOOL, "true", NULL,
     "Put an empty think block before answers without reasoning."},
    {"disable_ignore_empty_think", DT_ARG_BOOL, "false", NULL, "Train on empty think blocks too."},
};
const dt_arg_group dtp_template_arguments = DT_ARG_GROUP("Template", specs);

dt_status dtp_template_options(dt_template_options *out, const dt_args *args, dt_err *err)
{
    dt_template_options options = DT_TEMPLATE_OPTIONS_DEFAULT;
    dt_status st = dtp_parse_loss_strategy(dtp_args_string(args, "loss_scale"), &options, err);
    if (st != DT_OK)
        return st;
    options.system = dtp_args_string(args, "system");
    options.enable_thinking = dtp_args_bool(args, "enable_thinking");
    if (dtp_args_given(args, "preserve_thinking"))
        options.preserve_thinking = dtp_args_bool(args, "preserve_thinking");
    options.no_non_thinking_prefix = !dtp_args_bool(args, "add_non_thinking_prefix");
    options.train_empty_think = dtp_args_bool(args, "disable_ignore_empty_think");
    *out = options;
    return DT_OK;
}

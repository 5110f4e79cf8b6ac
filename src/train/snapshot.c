#include "train/snapshot.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/python_json.h"
#include "train/run_folder.h"

#include <stdlib.h>
#include <string.h>

static dt_status save_json(const char *folder, const char *name, const json_t *value, bool sort, dt_err *err)
{
    char *path = dtp_path_join(folder, name);
    dt_status st = path && value ? dtp_python_save(value, path, sort, err)
                                 : dt_fail(err, DT_E_NOMEM, "%s/%s: out of memory", folder, name);
    free(path);
    return st;
}

static dt_status save_text(const char *folder, const char *name, const dt_buf *text, dt_err *err)
{
    char *path = dtp_path_join(folder, name);
    dt_status st = path ? dtp_buf_status(text, path, err) : dt_fail(err, DT_E_NOMEM, "%s: out of memory", folder);
    if (st == DT_OK)
        st = dtp_write_file(path, text->data, text->length, err);
    free(path);
    return st;
}

/* A model card with the front matter that hubs read. */
static dt_status save_readme(const char *folder, const dt_snapshot *c, dt_err *err)
{
    dt_buf text = {0};
    dtp_buf_printf(&text, "---\nbase_model: %s\n", c->base_model);
    if (c->full)
        dtp_buf_puts(&text, "library_name: transformers\n---\n\n");
    else
        dtp_buf_puts(&text, "library_name: peft\ntags:\n- lora\n---\n\n");
    dtp_buf_printf(&text, "Step %lld of a fine-tuning run with deltune; `args.json` has its settings.\n\n",
                   (long long)c->step);
    if (c->full)
        dtp_buf_puts(&text, "Load this folder like the base model.\n");
    else
        dtp_buf_puts(&text, "```python\nfrom peft import PeftModel\n"
                            "model = PeftModel.from_pretrained(base_model, \"this folder\")\n```\n"
                            "Or merge it: `deltune export --adapters THIS-FOLDER --merge_lora true`.\n");
    dt_status st = save_text(folder, "README.md", &text, err);
    dtp_buf_free(&text);
    return st;
}

/* What the reference keeps about adapters beside peft's own file. */
static dt_status save_additional(const char *folder, dt_err *err)
{
    json_t *value = json_pack("{s:n, s:n, s:f}", "lora_dtype", "lorap_lr_ratio", "lorap_emb_lr", 1e-6);
    dt_status st = save_json(folder, "additional_config.json", value, false, err);
    json_decref(value);
    return st;
}

static dt_status fill(const char *folder, const dt_snapshot *c, dt_err *err)
{
    dt_status st = c->full ? dtp_model_save_full(c->model, folder, c->max_shard_bytes, err)
                           : dtp_model_save_adapter(c->model, folder, err);
    if (st == DT_OK && !c->full)
        st = save_additional(folder, err);
    if (st == DT_OK)
        st = save_readme(folder, c, err);
    if (st == DT_OK)
        st = save_json(folder, "args.json", c->args, false, err);
    if (st == DT_OK)
        st = save_json(folder, "trainer_state.json", c->trainer_state, true, err);
    if (st == DT_OK && c->state)
        st = dtp_state_save(c->state, c->exec, dtp_model_trainable(c->model), folder, err);
    return st;
}

dt_status dtp_snapshot_save(char **path_out, const dt_snapshot *c, dt_err *err)
{
    char *temporary = NULL;
    dt_status st = dtp_checkpoint_begin(&temporary, c->run_folder, c->step, err);
    if (st == DT_OK)
        st = fill(temporary, c, err);
    if (st == DT_OK)
        st = dtp_checkpoint_publish(path_out, c->run_folder, temporary, c->step, err);
    if (st != DT_OK) {
        dtp_checkpoint_abandon(temporary);
        dt_err_prefix(err, "checkpoint-%lld is not saved: ", (long long)c->step);
    }
    free(temporary);
    return st;
}

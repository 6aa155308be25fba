// my-plugin: drops bad readings, converts °C to °F, and adds the site that the config names.
//
// The files transform_plugin* are what `wit-bindgen c --world transform-plugin wit` makes of the WIT. What a function is given belongs to it, and is freed
// here; what it returns is freed by the bindings.
#include "transform_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Deeper values are refused: a plugin has 512 KiB of stack.
#define DEPTH_MAX 64

typedef exports_waystation_plugin_transform_outcome_t outcome_t;
typedef exports_waystation_plugin_transform_record_t record_t;

// A part of a JSON text, as it is written there.
typedef struct {
  const char *at;
  size_t len;
} part_t;

// The site, as it is written in the config, with its quotes.
static char *site;

static const char *space(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
  return at;
}

// The end of a string, or NULL.
static const char *string(const char *at, const char *end) {
  if (at == end || *at != '"') return NULL;
  for (at++; at < end; at++) {
    if (*at == '"') return at + 1;
    if ((unsigned char)*at < ' ') return NULL;
    if (*at == '\\') at++;
  }
  return NULL;
}

static const char *word(const char *at, const char *end, const char *word) {
  size_t len = strlen(word);
  return (size_t)(end - at) >= len && !memcmp(at, word, len) ? at + len : NULL;
}

// The end of a value, or NULL where there is none.
static const char *value(const char *at, const char *end, int depth) {
  if (at == end || depth > DEPTH_MAX) return NULL;
  if (*at == '"') return string(at, end);
  if (*at == 't') return word(at, end, "true");
  if (*at == 'f') return word(at, end, "false");
  if (*at == 'n') return word(at, end, "null");
  if (*at == '{' || *at == '[') {
    char close = *at == '{' ? '}' : ']';
    const char *next = space(at + 1, end);
    if (next < end && *next == close) return next + 1;
    for (;;) {
      if (close == '}') {
        if (!(next = string(next, end))) return NULL;
        next = space(next, end);
        if (next == end || *next++ != ':') return NULL;
        next = space(next, end);
      }
      if (!(next = value(next, end, depth + 1))) return NULL;
      next = space(next, end);
      if (next == end) return NULL;
      if (*next == close) return next + 1;
      if (*next++ != ',') return NULL;
      next = space(next, end);
    }
  }
  const char *start = at;
  while (at < end && *at && strchr("+-.0123456789eE", *at)) at++;
  return at > start ? at : NULL;
}

// Takes the next member of an object that `value` has found good. `at` stands behind its brace, or behind the member before.
static bool member(const char **at, part_t *key, part_t *val) {
  const char *end = *at + strlen(*at);
  const char *next = space(*at, end);
  if (*next == ',') next = space(next + 1, end);
  if (*next != '"') return false;
  const char *key_end = string(next, end);
  *key = (part_t){next, (size_t)(key_end - next)};
  next = space(space(key_end, end) + 1, end);
  const char *val_end = value(next, end, 0);
  *val = (part_t){next, (size_t)(val_end - next)};
  *at = val_end;
  return true;
}

static bool is(part_t part, const char *text) {
  return part.len == strlen(text) && !memcmp(part.at, text, part.len);
}

// A copy with a zero at its end, when it is a JSON object and nothing else; else NULL.
static char *object(const uint8_t *bytes, size_t len) {
  char *text = malloc(len + 1);
  memcpy(text, bytes, len);
  text[len] = 0;
  const char *end = text + len;
  const char *at = space(text, end);
  const char *rest = at < end && *at == '{' ? value(at, end, 0) : NULL;
  if (rest && space(rest, end) == end) {
    memmove(text, at, (size_t)(end - at) + 1);
    return text;
  }
  free(text);
  return NULL;
}

static outcome_t reject(const char *reason) {
  outcome_t outcome = {.tag = EXPORTS_WAYSTATION_PLUGIN_TRANSFORM_OUTCOME_REJECT};
  transform_plugin_string_dup(&outcome.val.reject, reason);
  return outcome;
}

static outcome_t transform(const record_t *record) {
  char *text = object(record->payload.ptr, record->payload.len);
  if (!text) return reject("the payload is no JSON object");
  // Room for all that is there, the site, and a number that got longer.
  char *out = malloc(record->payload.len + strlen(site) + 64);
  char *to = out;
  bool is_bad = false;
  part_t key, val;
  *to++ = '{';
  for (const char *at = text + 1; member(&at, &key, &val);) {
    if (is(key, "\"status\"") && is(val, "\"bad\"")) is_bad = true;
    bool is_number = (*val.at == '-' || (*val.at >= '0' && *val.at <= '9')) && val.len < 32;
    if (is(key, "\"temperature_c\"") && is_number) {
      double fahrenheit = round((strtod(val.at, NULL) * 1.8 + 32) * 1000) / 1000;
      to += snprintf(to, 48, "\"temperature_f\":%.15g,", fahrenheit);
    } else if (!is(key, "\"site\"")) {
      to += sprintf(to, "%.*s:%.*s,", (int)key.len, key.at, (int)val.len, val.at);
    }
  }
  to += sprintf(to, "\"site\":%s}", site);
  free(text);
  if (is_bad) {
    free(out);
    return (outcome_t){.tag = EXPORTS_WAYSTATION_PLUGIN_TRANSFORM_OUTCOME_DROP};
  }
  outcome_t outcome = {.tag = EXPORTS_WAYSTATION_PLUGIN_TRANSFORM_OUTCOME_PAYLOAD};
  outcome.val.payload.ptr = (uint8_t *)out;
  outcome.val.payload.len = (size_t)(to - out);
  return outcome;
}

bool exports_waystation_plugin_transform_init(transform_plugin_string_t *config,
                                              exports_waystation_plugin_transform_place_t *place,
                                              transform_plugin_string_t *err) {
  char *text = object(config->ptr, config->len);
  char reason[128] = "";
  part_t key, val;
  site = strdup("\"plant\"");
  for (const char *at = text + 1; text && member(&at, &key, &val);) {
    if (!is(key, "\"site\"")) {
      snprintf(reason, sizeof reason, "config: there is no key %.*s", (int)key.len, key.at);
    } else if (*val.at != '"') {
      snprintf(reason, sizeof reason, "config.site must be a text");
    } else {
      free(site);
      site = strndup(val.at, val.len);
    }
  }
  free(text);
  transform_plugin_string_free(config);
  exports_waystation_plugin_transform_place_free(place);
  if (*reason) transform_plugin_string_dup(err, reason);
  return !*reason;
}

bool exports_waystation_plugin_transform_process(
    int64_t now, exports_waystation_plugin_transform_list_record_t *records,
    exports_waystation_plugin_transform_list_outcome_t *ret,
    exports_waystation_plugin_transform_error_t *err) {
  (void)now, (void)err;
  ret->len = records->len;
  ret->ptr = calloc(records->len, sizeof *ret->ptr);
  for (size_t i = 0; i < records->len; i++) ret->ptr[i] = transform(&records->ptr[i]);
  exports_waystation_plugin_transform_list_record_free(records);
  return true;
}

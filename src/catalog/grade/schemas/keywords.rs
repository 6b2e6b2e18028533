//! The keywords of schemas, by what their values are and by what may be said of them. Pure.

/// Most pairs of subschemas, or keywords, that are looked at; past that it cannot be told.
pub(super) const MAX_STEPS: u32 = 200_000;

/// Keywords that are words for people, or hints for forms.
pub(super) const WORDS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Keywords that give places names, say what keywords mean, or look at what their neighbours have seen: where one of
/// them stands, two schemas are the same to the letter, or it cannot be told.
pub(super) const OPAQUE: [&str; 10] = [
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "$vocabulary",
    "unevaluatedProperties",
    "unevaluatedItems",
];

/// Keywords under which less may mean more: beside references to what is narrower, nothing can be told.
pub(super) const TURNING: [&str; 5] = ["not", "if", "oneOf", "minContains", "maxContains"];

/// Keywords whose value is a schema.
pub(super) const SCHEMA: [&str; 12] = [
    "additionalProperties",
    "additionalItems",
    "items",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contentSchema",
];

/// Keywords whose value is a list of schemas.
pub(super) const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// Keywords whose value is schemas by name.
pub(super) const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Where definitions that are referred to stand.
pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

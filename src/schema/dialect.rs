//! Which dialect of JSON Schema a schema is written in, by its `$schema`.

use boon::Draft;
use serde_json::Value;

use super::compile::{EXPLANATION_MAX, Remotes, Unusable};
use super::violation::cut;

/// The dialect of the schema's root; the newest where only a remote could tell.
pub(super) fn of(schema: &Value, remotes: &Remotes) -> Result<Draft, Unusable> {
    let Some(dialect) = schema.get("$schema").and_then(Value::as_str) else {
        return Ok(Draft::default());
    };
    let uri = dialect.trim_end_matches('#');
    match Draft::from_url(uri) {
        Some(draft) => Ok(draft),
        None if remotes.0.contains_key(uri) => Ok(Draft::default()),
        None => Err(Unusable::Dialect(cut(dialect, EXPLANATION_MAX).to_owned())),
    }
}

/// The keyword by which a dialect identifies a resource.
pub(super) fn identifier(draft: Draft) -> &'static str {
    if draft == Draft::V4 { "id" } else { "$id" }
}

/// A dialect that is stated within the schema, and identifies resources by another keyword than
/// `id`: where its references lead to depends on who reads them. The nesting of schemas bounds the
/// recursion.
pub(super) fn stated_within<'a>(schema: &'a Value, id: &str) -> Option<&'a str> {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => {
            return items.iter().find_map(|item| stated_within(item, id));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    };
    let own = members.get("$schema").and_then(Value::as_str);
    let other = own.filter(|uri| {
        Draft::from_url(uri.trim_end_matches('#')).is_some_and(|draft| identifier(draft) != id)
    });
    other.or_else(|| members.values().find_map(|value| stated_within(value, id)))
}

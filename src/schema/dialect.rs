//! Which dialect of JSON Schema a schema is written in, by its `$schema`.

use boon::Draft;
use serde_json::Value;

use super::cut::cut;
use super::remotes::Remotes;
use super::unusable::{EXPLANATION_MAX, Unusable};

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

/// The first of `dialects` that identifies resources by another keyword than `id`: where the
/// references in there lead to depends on who reads them.
pub(super) fn mixed<'a>(dialects: &'a [String], id: &str) -> Option<&'a str> {
    let other = |uri: &&String| {
        Draft::from_url(uri.trim_end_matches('#')).is_some_and(|draft| identifier(draft) != id)
    };
    dialects.iter().find(other).map(String::as_str)
}

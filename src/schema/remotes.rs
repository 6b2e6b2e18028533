//! Documents that references may lead to. Nothing is fetched: what is not among these is not there.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// Documents that references may lead to, by URI. Empty outside of tests.
#[derive(Clone, Debug, Default)]
pub struct Remotes(pub Arc<HashMap<String, Value>>);

impl boon::UrlLoader for Remotes {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        self.0.get(url).cloned().ok_or_else(|| "nothing is fetched".into())
    }
}

impl jsonschema::Retrieve for Remotes {
    fn retrieve(
        &self,
        uri: &jsonschema::Uri<String>,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let url = uri.as_str().trim_end_matches('#');
        self.0.get(url).cloned().ok_or_else(|| "nothing is fetched".into())
    }
}

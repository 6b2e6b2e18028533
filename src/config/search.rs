//! What is checked of the section `search` beside its own bounds: that its key can be had, and is not read on the way.

use super::findings::Findings;
use super::problem::KeyPath;
use super::telemetry::is_exposed;
use crate::embeddings::SearchSection;
use crate::upstream::filled_in;

fn api_key() -> KeyPath {
    KeyPath::root("search").key("embeddings").key("api_key")
}

/// Reports what is valid and perhaps not intended.
pub(super) fn check(section: &SearchSection, findings: &mut Findings<'_>) {
    let Some(embeddings) = &section.embeddings else { return };
    if embeddings.api_key.is_some() && is_exposed(&embeddings.url) {
        let odd = "goes over plain http to another machine, where whoever is on the way reads it: use https";
        findings.warn(&api_key(), odd);
    }
}

/// Reports a key that cannot be had on this machine.
pub(super) fn check_machine(
    section: &SearchSection,
    env: &dyn Fn(&str) -> Option<String>,
    findings: &mut Findings<'_>,
) {
    let key = section.embeddings.as_ref().and_then(|embeddings| embeddings.api_key.as_deref());
    if let Some(Err(problem)) = key.map(|key| filled_in(key, &api_key().to_string(), env)) {
        findings.error(&api_key(), problem);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Flags, parse};

    #[test]
    fn a_key_that_can_be_read_on_the_way_is_warned_of() {
        for (url, exposed) in [
            ("http://models.example/v1", true),
            ("https://models.example/v1", false),
            ("http://127.0.0.1:11434/v1", false),
        ] {
            let text = format!(
                r#"{{"search": {{"embeddings": {{"url": "{url}", "model": "m", "api_key": "s3cret"}}}}}}"#
            );
            let flags = Flags { data_dir: Some("/d".into()), ..Flags::default() };
            let (config, warnings) = parse(&text, &|_| None, &flags).unwrap();
            let told: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(told.iter().any(|it| it.contains("plain http")), exposed, "{told:?}");
            assert!(!told.concat().contains("s3cret"), "{told:?}");
            let shown = format!("{config:?} {}", config.written.shown());
            assert!(!shown.contains("s3cret") && !shown.contains("models.example"), "{shown}");
            assert!(config.secrets().any(|it| it == "s3cret"));
        }
    }
}

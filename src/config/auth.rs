//! The section `auth`: the JWTs of an identity provider.

use std::path::Path;

use serde::Deserialize;

use super::findings::Findings;
use super::problem::KeyPath;
use crate::identity::{Algorithm, KeySource, Settings};
use crate::upstream::oauth::check_key_set_url;

/// Most bytes of an issuer, an audience or the name of a claim.
const MAX_TEXT_BYTES: usize = 2048;

/// The section `auth`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Auth {
    /// `auth.jwt`
    pub(super) jwt: Option<JwtSection>,
}

/// The section `auth.jwt`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct JwtSection {
    issuer: Option<String>,
    audience: Option<String>,
    jwks_url: Option<String>,
    jwks_file: Option<String>,
    algorithms: Option<Vec<Algorithm>>,
    groups_claim: Option<String>,
}

impl JwtSection {
    /// The section as it is meant; `None` where something is wrong, which is told. A relative `jwks_file` is one in
    /// `data_dir`.
    pub(super) fn read(self, data_dir: &Path, findings: &mut Findings<'_>) -> Option<Settings> {
        let at = KeyPath::root("auth").key("jwt");
        let required = |name: &'static str, text: Option<String>, findings: &mut Findings<'_>| {
            let text = text.filter(|text| (1..=MAX_TEXT_BYTES).contains(&text.len()));
            if text.is_none() {
                let problem = format_args!("must be a text of 1 to {MAX_TEXT_BYTES} bytes");
                findings.error(&at.key(name), problem);
            }
            text
        };
        let issuer = required("issuer", self.issuer, findings);
        let audience = required("audience", self.audience, findings);
        let claim = self.groups_claim.or_else(|| Some("groups".to_owned()));
        let claim = required("groups_claim", claim, findings);
        let keys = match (self.jwks_url, self.jwks_file) {
            (Some(url), None) => match check_key_set_url(&url) {
                Ok(()) => Some(KeySource::Url(url.into())),
                Err(problem) => {
                    findings.error(&at.key("jwks_url"), problem);
                    None
                }
            },
            (None, Some(file)) if !file.is_empty() => Some(KeySource::File(data_dir.join(file))),
            (Some(_), Some(_)) | (None, Some(_) | None) => {
                findings.error(&at, "needs one of jwks_url and jwks_file, and not both");
                None
            }
        };
        let usual = || vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];
        let algorithms = self.algorithms.unwrap_or_else(usual);
        if algorithms.is_empty() {
            findings.error(&at.key("algorithms"), "must name one at least");
        }
        Some(Settings {
            issuer: issuer?.into(),
            audience: audience?.into(),
            keys: keys?,
            algorithms: (!algorithms.is_empty()).then_some(algorithms)?,
            groups_claim: claim?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{Flags, parse};

    fn read(jwt: &str) -> Result<Settings, Vec<String>> {
        let flags = Flags { data_dir: Some("/data".into()), ..Flags::default() };
        let text = format!(r#"{{"auth": {{"jwt": {jwt}}}}}"#);
        let parsed = parse(&text, &|_| None, &flags);
        let told = |problems: Vec<crate::config::problem::Problem>| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        parsed.map(|(config, _)| config.jwt.unwrap()).map_err(told)
    }

    #[test]
    fn jwts_are_awaited_as_the_section_says() {
        let whole = r#"{"issuer": "https://i", "audience": "a", "jwks_url": "https://i/jwks"}"#;
        let settings = read(whole).unwrap();
        assert_eq!((&*settings.issuer, &*settings.audience), ("https://i", "a"));
        assert_eq!(settings.keys, KeySource::Url("https://i/jwks".into()));
        assert_eq!(settings.algorithms, [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa]);
        assert_eq!(&*settings.groups_claim, "groups");
        let file = r#"{"issuer": "i", "audience": "a", "jwks_file": "keys.json",
            "algorithms": ["ES384"], "groups_claim": "roles"}"#;
        let settings = read(file).unwrap();
        assert_eq!(settings.keys, KeySource::File(PathBuf::from("/data/keys.json")));
        assert_eq!(settings.algorithms, [Algorithm::Es384]);
        assert!(
            parse("{}", &|_| None, &Flags { data_dir: Some("/d".into()), ..Flags::default() })
                .unwrap()
                .0
                .jwt
                .is_none()
        );
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_without_its_password_and_path() {
        for scheme in ["http", "https", "ftp", "x"] {
            let url = format!("{scheme}://user:s3cret@i.example/s3cret?key=s3cret");
            let jwt = format!(r#"{{"issuer": "i", "audience": "a", "jwks_url": "{url}"}}"#);
            let problems = read(&jwt).unwrap_err();
            assert!(problems.concat().contains("auth.jwt.jwks_url: a URL holds a user name"));
            assert!(!problems.concat().contains("s3cret"), "{problems:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_key() {
        let good = r#""issuer": "i", "audience": "a""#;
        for (jwt, told) in [
            ("{}".to_owned(), "auth.jwt.issuer: "),
            (format!("{{{good}}}"), "needs one of jwks_url and jwks_file"),
            (
                format!(r#"{{{good}, "jwks_url": "https://i", "jwks_file": "f"}}"#),
                "needs one of jwks_url and jwks_file",
            ),
            (format!(r#"{{{good}, "jwks_url": "http://i.example/jwks"}}"#), "auth.jwt.jwks_url"),
            (format!(r#"{{{good}, "jwks_url": "nonsense"}}"#), "auth.jwt.jwks_url"),
            (format!(r#"{{{good}, "jwks_file": "f", "algorithms": []}}"#), "auth.jwt.algorithms"),
            (
                format!(r#"{{{good}, "jwks_file": "f", "algorithms": ["none"]}}"#),
                "auth.jwt.algorithms[0]: unknown variant `none`",
            ),
            (
                format!(r#"{{{good}, "jwks_file": "f", "algorithms": ["HS256"]}}"#),
                "unknown variant `HS256`",
            ),
            (format!(r#"{{{good}, "jwks_file": "f", "audience": 7}}"#), "audience"),
        ] {
            let problems = read(&jwt).unwrap_err();
            assert!(problems.iter().any(|it| it.contains(told)), "{jwt}: {problems:?}");
        }
    }
}

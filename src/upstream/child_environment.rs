//! What of our environment a child does not get: what makes whoever has it us.
//!
//! The rest is inherited, since servers look for their own credentials there. What an entry names in its `env` it gets,
//! whatever it is.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

/// The key that may do everything, and the folder of what systemd has given this service.
const OURS: [&str; 2] = ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY"];

/// The variables that children do not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithheldVariables {
    /// Names beside those that are always withheld.
    pub names: BTreeSet<String>,
    /// What the names of others begin with.
    pub prefixes: &'static [&'static str],
}

impl WithheldVariables {
    /// Those of `environment` that are withheld.
    pub(super) fn among(&self, environment: impl Iterator<Item = OsString>) -> Vec<OsString> {
        environment.filter(|name| self.withholds(name)).collect()
    }

    fn withholds(&self, name: &OsStr) -> bool {
        // One that is no text is none of ours.
        name.to_str().is_some_and(|name| {
            OURS.contains(&name)
                || self.names.contains(name)
                || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_withheld_and_nothing_else() {
        let all =
            ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY", "AWS_PROFILE", "KEY", "KEYS", "PATH"];
        let withheld = |of: &WithheldVariables| of.among(all.iter().map(OsString::from));
        assert_eq!(
            withheld(&WithheldVariables::default()),
            ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY"]
        );
        let more = WithheldVariables { names: ["KEY".to_owned()].into(), prefixes: &["AWS_"] };
        let expected = ["MCPPROXY_API_KEY", "CREDENTIALS_DIRECTORY", "AWS_PROFILE", "KEY"];
        assert_eq!(withheld(&more), expected);
    }
}

//! What a server and a client say that they are able to do. Pure.

use serde::Deserialize;

/// What a server said that it offers. All false before it was reached for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCapabilities {
    /// `tools/*`
    pub tools: bool,
    /// `resources/*`
    pub resources: bool,
    /// Single resources can be subscribed to.
    pub resource_updates: bool,
    /// `prompts/*`
    pub prompts: bool,
    /// `completion/complete`
    pub completions: bool,
    /// `logging/setLevel` and log notifications.
    pub logging: bool,
}

/// Which requests of a server the client behind a call can be asked. Only one of the revisions
/// with `initialize` can: a modern client has none of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// `sampling/createMessage`
    pub sampling: bool,
    /// `elicitation/create`
    pub elicitation: bool,
    /// Of these, forms; a client may know URLs alone.
    pub elicitation_forms: bool,
    /// `roots/list`
    pub roots: bool,
}

impl ClientCapabilities {
    /// Whatever a server can ask.
    pub const ALL: Self =
        Self { sampling: true, elicitation: true, elicitation_forms: true, roots: true };

    /// Whether its client can be asked that.
    #[must_use]
    pub fn grant(self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation,
            "roots/list" => self.roots,
            _ => false,
        }
    }
}

impl<'de> Deserialize<'de> for ClientCapabilities {
    /// Reads `ClientCapabilities`: what is there is declared. Elicitation of no stated mode is that by forms.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Members {
            sampling: Option<Empty>,
            elicitation: Option<Modes>,
            roots: Option<Empty>,
        }
        #[derive(Deserialize)]
        struct Modes {
            form: Option<Empty>,
            url: Option<Empty>,
        }
        #[derive(Deserialize)]
        struct Empty {}
        let Members { sampling, elicitation, roots } = Members::deserialize(deserializer)?;
        let forms = elicitation.as_ref().is_some_and(|it| it.form.is_some() || it.url.is_none());
        Ok(Self {
            sampling: sampling.is_some(),
            elicitation: elicitation.is_some(),
            elicitation_forms: forms,
            roots: roots.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_declared_by_being_there() {
        let client_capabilities =
            |json: &str| serde_json::from_str::<ClientCapabilities>(json).ok();
        for (modes, forms) in
            [("{}", true), (r#"{"url":{}}"#, false), (r#"{"url":{},"form":{}}"#, true)]
        {
            let declared = format!(
                r#"{{"roots":{{"listChanged":true}},"sampling":{{}},"elicitation":{modes}}}"#
            );
            let all = ClientCapabilities { elicitation_forms: forms, ..ClientCapabilities::ALL };
            assert_eq!(client_capabilities(&declared), Some(all), "{modes}");
        }
        assert_eq!(
            client_capabilities(r#"{"experimental":{}}"#),
            Some(ClientCapabilities::default())
        );
        assert_eq!(client_capabilities("7"), None);
        assert_eq!(client_capabilities(r#"{"roots":7}"#), None);
    }
}

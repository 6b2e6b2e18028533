//! `oauth` of a server's entry in the config.

use serde::Deserialize;

/// `oauth` of a server's entry: for authorization servers where clients cannot register
/// themselves. `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The client that was registered by hand.
    pub client_id: Option<String>,
    /// Its secret, if it has one. `${env:NAME}` is filled in.
    pub client_secret: Option<String>,
    /// Who registered it: at no other authorization server are the two used. Absent: whoever they
    /// were used at first.
    pub issuer: Option<String>,
    /// Where the client describes itself, an https URL that is its id at authorization servers
    /// which read such descriptions; at others it registers itself.
    pub client_metadata_url: Option<String>,
    /// What to ask for; absent: what the server asks for.
    pub scopes: Vec<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

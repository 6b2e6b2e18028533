//! On whose behalf a request is made.

/// Who asks, as far as it was proven. It stands in each request and in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Nobody said who they are: the loopback without a key, a pipe.
    #[default]
    Anonymous,
    /// The holder of the API key.
    Admin,
}

impl Principal {
    /// The name in records and filters: stable, and of one word.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Admin => "admin",
        }
    }
}

//! How the arguments of a tool's calls are judged: by which schema, and what it leads to where they do not fit.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::output::Mode;
use crate::schema::compile::Schema;

/// `input_validation`: what is done with arguments that do not fit their tool's `inputSchema`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct InputPolicy {
    /// `off`: they are not judged; `warn`: they go out and the decision is recorded; `strict`, the default: what no
    /// server could accept ([`misfit`](crate::schema::misfit)) does not go out, and the rest is as in `warn`.
    pub mode: Mode,
}

impl Default for InputPolicy {
    fn default() -> Self {
        Self { mode: Mode::Strict }
    }
}

/// What a tool's arguments are judged by.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// What it leads to.
    pub policy: InputPolicy,
    /// Shared by all versions of the tool that have the same schema.
    schema: Arc<OnceLock<InputSchema>>,
}

/// What became of an `inputSchema` when it was first asked.
#[derive(Clone, Debug)]
pub enum InputSchema {
    /// It is ready.
    Compiled(Arc<Schema>),
    /// It cannot be used, for this reason in one line: arguments go out as they are.
    Unusable(Arc<str>),
}

impl Input {
    /// Arguments under that policy, by a schema that is not compiled yet.
    #[must_use]
    pub fn new(policy: InputPolicy) -> Self {
        Self { policy, schema: Arc::default() }
    }

    /// The same schema under another policy.
    #[must_use]
    pub fn under(&self, policy: InputPolicy) -> Self {
        Self { policy, schema: Arc::clone(&self.schema) }
    }

    /// The schema; `None` before it was first asked for.
    #[must_use]
    pub fn schema(&self) -> Option<&InputSchema> {
        self.schema.get()
    }

    /// The schema, and whether it was compiled now, by `compile`. Whoever asks meanwhile waits on its thread.
    pub fn compiled(&self, compile: impl FnOnce() -> InputSchema) -> (&InputSchema, bool) {
        let mut new = false;
        let schema = self.schema.get_or_init(|| {
            new = true;
            compile()
        });
        (schema, new)
    }
}

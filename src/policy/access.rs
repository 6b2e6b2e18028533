//! What is asked of a server: the call of a tool, a resource, a prompt, a completion.

use std::fmt;
use std::sync::Arc;

use crate::intent::{Intent, Operation};
use crate::tool::Tool;

/// The method that asks for a prompt.
pub const PROMPTS_GET: &str = "prompts/get";
/// The method that calls a tool.
pub const TOOLS_CALL: &str = "tools/call";
/// The method that asks for completions.
pub const COMPLETION_COMPLETE: &str = "completion/complete";

/// One thing that is asked of one server, by the name or URI that the server knows it by.
#[derive(Clone, Debug)]
pub enum Access {
    /// `tools/call`
    Tool(ToolAccess),
    /// `resources/read`, and the beginning and end of a subscription.
    Resource {
        /// The server's name in the config.
        server: Arc<str>,
        /// The resource.
        uri: Box<str>,
        /// What is to be done with it.
        request: ResourceRequest,
    },
    /// `prompts/get`
    Prompt {
        /// The server's name in the config.
        server: Arc<str>,
        /// The prompt.
        name: Box<str>,
    },
    /// `completion/complete`
    Completion {
        /// The server's name in the config.
        server: Arc<str>,
        /// What has the argument that is completed.
        of: Reference,
    },
}

/// The call of a tool, by an operation that agrees with the intent that was stated for it.
#[derive(Clone, Debug)]
pub struct ToolAccess {
    tool: Arc<Tool>,
    operation: Operation,
}

/// What is asked about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceRequest {
    /// `resources/read`
    Read,
    /// `resources/subscribe`
    Subscribe,
    /// `resources/unsubscribe`
    Unsubscribe,
}

/// What has arguments that can be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The prompt of that name.
    Prompt(Box<str>),
    /// The resource, or template of resources, of that URI.
    Resource(Box<str>),
}

impl ToolAccess {
    /// A call by one of the call tools, whose intent agrees with it.
    #[must_use]
    pub fn declared(tool: Arc<Tool>, intent: &Intent<'_>) -> Self {
        Self { tool, operation: intent.operation() }
    }

    /// A call of the tool under its own name, for which no intent can be stated: the operation is what the tool's
    /// effective side effect says (CAP-5).
    #[must_use]
    pub fn direct(tool: Arc<Tool>) -> Self {
        let operation = Operation::recommended(tool.capability);
        Self { tool, operation }
    }

    /// The tool.
    #[must_use]
    pub fn tool(&self) -> &Arc<Tool> {
        &self.tool
    }

    /// What the call may do.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }
}

impl ResourceRequest {
    /// The method of the protocol.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Read => "resources/read",
            Self::Subscribe => "resources/subscribe",
            Self::Unsubscribe => "resources/unsubscribe",
        }
    }
}

impl Access {
    /// The server that is asked.
    #[must_use]
    pub fn server(&self) -> &Arc<str> {
        match self {
            Self::Tool(call) => &call.tool.name.server,
            Self::Resource { server, .. }
            | Self::Prompt { server, .. }
            | Self::Completion { server, .. } => server,
        }
    }

    /// The method of the protocol.
    #[must_use]
    pub fn method(&self) -> &'static str {
        match self {
            Self::Tool(_) => TOOLS_CALL,
            Self::Resource { request, .. } => request.method(),
            Self::Prompt { .. } => PROMPTS_GET,
            Self::Completion { .. } => COMPLETION_COMPLETE,
        }
    }

    /// What stands for it beside its server in records and messages: the tool's name, else the method.
    #[must_use]
    pub fn label(&self) -> &str {
        match self {
            Self::Tool(call) => &call.tool.name.tool,
            Self::Resource { .. } | Self::Prompt { .. } | Self::Completion { .. } => self.method(),
        }
    }

    /// The tool, if one is called.
    #[must_use]
    pub fn tool(&self) -> Option<&Arc<Tool>> {
        match self {
            Self::Tool(call) => Some(&call.tool),
            Self::Resource { .. } | Self::Prompt { .. } | Self::Completion { .. } => None,
        }
    }
}

impl fmt::Display for Access {
    /// `server:label`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server(), self.label())
    }
}

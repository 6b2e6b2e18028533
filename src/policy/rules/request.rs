//! One request as rules see it: who, does what, with what.

use std::sync::Arc;
use std::time::SystemTime;

use crate::intent::{Operation, Sensitivity};
use crate::policy::session_facts::SessionFacts;
use crate::tool::Tool;

/// Who asks, in Cedar `Agent::"ID"`, in a `Group` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The principal's id, as in records.
    pub id: &'a str,
    /// The groups that it is in.
    pub groups: &'a [Box<str>],
}

/// What is done, in Cedar `Action::"WORD"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// A call that only reads.
    Read,
    /// A call that creates or updates.
    Write,
    /// A call that deletes or changes for good.
    Destructive,
    /// To be shown in a list, or found.
    List,
    /// What is asked of a resource.
    ReadResource,
    /// What is asked of a prompt.
    GetPrompt,
}

impl RuleAction {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Destructive,
        Self::List,
        Self::ReadResource,
        Self::GetPrompt,
    ];

    /// Its word in rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Destructive => "destructive",
            Self::List => "list",
            Self::ReadResource => "read_resource",
            Self::GetPrompt => "get_prompt",
        }
    }

    /// The action of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }
}

impl From<Operation> for RuleAction {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Read => Self::Read,
            Operation::Write => Self::Write,
            Operation::Destructive => Self::Destructive,
        }
    }
}

/// With what it is done.
#[derive(Clone, Copy, Debug)]
pub enum RuleTarget<'a> {
    /// A tool of the catalog.
    Tool(&'a Arc<Tool>),
    /// A tool of which only the name is known: rules that ask for its capability err.
    NamedTool {
        /// The server's name.
        server: &'a str,
        /// The tool's own name.
        tool: &'a str,
    },
    /// A resource, or a template of resources.
    Resource {
        /// The server's name.
        server: &'a str,
        /// The server's own URI.
        uri: &'a str,
    },
    /// A prompt.
    Prompt {
        /// The server's name.
        server: &'a str,
        /// The server's own name for it.
        name: &'a str,
    },
}

impl<'a> RuleTarget<'a> {
    /// The server.
    #[must_use]
    pub fn server(&self) -> &'a str {
        match self {
            Self::Tool(tool) => &tool.name.server,
            Self::NamedTool { server, .. }
            | Self::Resource { server, .. }
            | Self::Prompt { server, .. } => server,
        }
    }

    /// The server's own name or URI.
    #[must_use]
    pub fn own(&self) -> &'a str {
        match self {
            Self::Tool(tool) => &tool.name.tool,
            Self::NamedTool { tool: own, .. }
            | Self::Resource { uri: own, .. }
            | Self::Prompt { name: own, .. } => own,
        }
    }

    /// By kind and name, as denials say it.
    #[must_use]
    pub fn shown(&self) -> String {
        let kind = match self {
            Self::Tool(_) | Self::NamedTool { .. } => "Tool",
            Self::Resource { .. } => "Resource",
            Self::Prompt { .. } => "Prompt",
        };
        format!("{kind} '{}:{}'", self.server(), self.own())
    }
}

/// What rules are asked.
#[derive(Clone, Copy, Debug)]
pub struct RuleRequest<'a> {
    /// Who asks.
    pub subject: Subject<'a>,
    /// What is done.
    pub action: RuleAction,
    /// With what.
    pub target: RuleTarget<'a>,
    /// The arguments of a call: one raw JSON object without duplicate keys.
    pub arguments: &'a [u8],
    /// How sensitive the data is, as the intent states it.
    pub sensitivity: Option<Sensitivity>,
    /// Why, as the intent states it, or empty.
    pub reason: &'a str,
    /// The client's own name, or empty.
    pub client: &'a str,
    /// What went on in the session before.
    pub session: SessionFacts,
    /// The time of day.
    pub now: SystemTime,
}

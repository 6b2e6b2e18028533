//! A tool's full name.

use std::fmt;
use std::sync::Arc;

/// `server:tool`, the name under which an agent calls a tool (FR-005).
///
/// The server's name holds no colon, so the first one separates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolName {
    /// The server's name in the config.
    pub server: Arc<str>,
    /// The tool's name as its server gave it.
    pub tool: Arc<str>,
}

impl ToolName {
    /// Splits at the first colon; `None` without one or with an empty half.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (server, tool) = Self::split(name)?;
        Some(Self { server: server.into(), tool: tool.into() })
    }

    /// The two halves of a name.
    #[must_use]
    pub fn split(name: &str) -> Option<(&str, &str)> {
        name.split_once(':').filter(|(server, tool)| !server.is_empty() && !tool.is_empty())
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.tool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_names() {
        let name = ToolName::parse("github:a:b").unwrap();
        assert_eq!((&*name.server, &*name.tool), ("github", "a:b"));
        for bad in ["", "x", ":x", "x:"] {
            assert_eq!(ToolName::parse(bad), None, "{bad}");
        }
    }
}

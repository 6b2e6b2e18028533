//! Whether an agent token was made for what is asked: servers, tools by pattern, operations.
//!
//! An operation is the greater one of what a call states and what its tool is known to do: a token is a bound on an
//! agent, so that the agent's own word cannot widen it.

use super::access::{Access, Reference, ResourceRequest};
use super::denial::Denial;
use super::principal::{AgentToken, Principal, Scope};
use crate::intent::Operation;
use crate::tool::{Pattern, Tool, ToolName};

/// What bounds the principal's lists; `None` where nothing does.
pub(super) fn of(principal: &Principal) -> Option<&Scope> {
    match principal {
        Principal::Anonymous
        | Principal::Admin
        | Principal::Subject(_)
        | Principal::Certificate(_) => None,
        Principal::Token(token) => Some(token.scope()).filter(|scope| **scope != Scope::default()),
    }
}

/// Whether the principal's token was made for what is asked.
///
/// # Errors
/// [`Denial::Scope`] where it was not.
pub(super) fn check(principal: &Principal, access: &Access) -> Result<(), Denial> {
    match principal {
        Principal::Anonymous
        | Principal::Admin
        | Principal::Subject(_)
        | Principal::Certificate(_) => Ok(()),
        Principal::Token(token) if token.scope().allows(access) => Ok(()),
        Principal::Token(token) => Err(refused(token, access)),
    }
}

impl Scope {
    fn allows(&self, access: &Access) -> bool {
        match access {
            Access::Tool(call) => {
                let tool = call.tool();
                let known = Operation::recommended(tool.capability);
                self.has_tool(&tool.name) && self.has_operation(greater(call.operation(), known))
            }
            Access::Resource { server, request, .. } => match request {
                ResourceRequest::Read | ResourceRequest::Subscribe => self.has_offers(server),
                // It ends what was allowed once, or nothing.
                ResourceRequest::Unsubscribe => self.has_server(server),
            },
            Access::Prompt { server, .. } | Access::Completion { server, .. } => {
                self.has_offers(server)
            }
        }
    }

    /// Whether a list shows the tool: it shows nothing that could not be called.
    pub(super) fn shows_tool(&self, tool: &Tool) -> bool {
        self.has_tool(&tool.name) && self.has_operation(Operation::recommended(tool.capability))
    }

    fn has_server(&self, server: &str) -> bool {
        self.servers.is_empty() || self.servers.iter().any(|name| **name == *server)
    }

    /// Whether it is for a tool of that name.
    pub(super) fn has_tool(&self, name: &ToolName) -> bool {
        let fits = |pattern: &Pattern| match pattern.as_str().split_once(':') {
            Some(_) => pattern.matches(&name.to_string()),
            None => pattern.matches(&name.tool),
        };
        self.has_server(&name.server) && (self.tools.is_empty() || self.tools.iter().any(fits))
    }

    fn has_operation(&self, operation: Operation) -> bool {
        self.operations.is_empty() || self.operations.contains(&operation)
    }

    /// Whether it is for what a server offers beside tools.
    pub(super) fn has_offers(&self, server: &str) -> bool {
        let for_tools_alone = self.servers.is_empty() && !self.tools.is_empty();
        !for_tools_alone && self.has_server(server) && self.has_operation(Operation::Read)
    }
}

fn greater(one: Operation, other: Operation) -> Operation {
    let place = |it: Operation| Operation::ALL.into_iter().position(|operation| operation == it);
    if place(one) < place(other) { other } else { one }
}

fn refused(token: &AgentToken, access: &Access) -> Denial {
    let access = match access {
        Access::Tool(call) => format!("tool '{}'", call.tool().name),
        Access::Resource { server, uri, .. } => format!("resource '{uri}' of '{server}'"),
        Access::Prompt { server, name } => format!("prompt '{name}' of '{server}'"),
        Access::Completion { server, of } => match of {
            Reference::Prompt(name) => format!("completions for prompt '{name}' of '{server}'"),
            Reference::Resource(uri) => format!("completions for resource '{uri}' of '{server}'"),
        },
    };
    Denial::Scope { token: token.name().into(), access: access.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intent::{self, Stated};
    use crate::policy::{Settings, ToolAccess, visible};
    use crate::tool::{Annotations, Rules};

    const READ_ONLY: &str = r#"{"readOnlyHint":true}"#;
    const UNMARKED: &str = "{}";
    const DESTRUCTIVE: &str = r#"{"destructiveHint":true}"#;

    fn tool(name: &str, annotations: &str) -> Arc<Tool> {
        let annotations: Annotations = serde_json::from_str(annotations).unwrap();
        let name = ToolName::parse(name).unwrap();
        Arc::new(Tool::named(name, annotations, &Rules::default()))
    }

    fn token(servers: &[&str], tools: &[&str], operations: &[Operation]) -> Principal {
        let texts = |list: &[&str]| list.iter().map(|text| Box::from(*text)).collect::<Vec<_>>();
        let scope = Scope {
            servers: texts(servers),
            tools: texts(tools).into_iter().map(Pattern::from).collect(),
            operations: operations.to_vec(),
        };
        Principal::Token(Arc::new(AgentToken::new("ci", 1, scope)))
    }

    fn called(name: &str, annotations: &str, by: Operation) -> Access {
        let json = format!("{:?}", by.as_str()).leak();
        let stated = Stated::parse(&[("intent_operation_type".into(), json)]);
        let intent = stated.check(by, &intent::Settings::default()).unwrap();
        Access::Tool(ToolAccess::declared(tool(name, annotations), &intent))
    }

    #[test]
    fn a_tool_is_refused_by_server_by_pattern_and_by_operation() {
        use Operation::{Destructive, Read, Write};
        for (principal, name, annotations, by, allowed) in [
            (token(&[], &[], &[]), "a:x", DESTRUCTIVE, Destructive, true),
            (token(&["a"], &[], &[]), "a:x", UNMARKED, Write, true),
            (token(&["a"], &[], &[]), "b:x", UNMARKED, Write, false),
            (token(&[], &["get_*"], &[]), "b:get_x", UNMARKED, Write, true),
            (token(&[], &["a:get_*"], &[]), "b:get_x", UNMARKED, Write, false),
            (token(&[], &["a:get_*", "b:*x"], &[]), "b:get_x", UNMARKED, Write, true),
            (token(&["a"], &["get_*"], &[]), "b:get_x", UNMARKED, Write, false),
            (token(&[], &[], &[Read]), "a:x", READ_ONLY, Read, true),
            (token(&[], &[], &[Read]), "a:x", READ_ONLY, Write, false),
            // The agent's word alone does not make a read of what is not marked as one.
            (token(&[], &[], &[Read]), "a:x", UNMARKED, Read, false),
            (token(&[], &[], &[Read, Write]), "a:x", UNMARKED, Read, true),
            (token(&[], &[], &[Read, Write]), "a:x", DESTRUCTIVE, Destructive, false),
            (token(&[], &[], &[Destructive]), "a:x", READ_ONLY, Read, false),
        ] {
            let checked = check(&principal, &called(name, annotations, by));
            assert_eq!(checked.is_ok(), allowed, "{principal:?} {name} {annotations} {by:?}");
            if let Err(denial) = checked {
                assert_eq!(denial.to_string(), format!("Token 'ci' does not allow tool '{name}'"));
            }
        }
    }

    #[test]
    fn what_is_no_tool_is_refused_by_server() {
        let server: Arc<str> = "a".into();
        let request = ResourceRequest::Read;
        let resource = Access::Resource { server: Arc::clone(&server), uri: "f:1".into(), request };
        let prompt = Access::Prompt { server: Arc::clone(&server), name: "p".into() };
        let of = Reference::Resource("f:{x}".into());
        let completion = Access::Completion { server, of };
        let all = [
            (resource, "resource 'f:1' of 'a'"),
            (prompt, "prompt 'p' of 'a'"),
            (completion, "completions for resource 'f:{x}' of 'a'"),
        ];
        for (access, shown) in &all {
            for (principal, allowed) in [
                (token(&[], &[], &[]), true),
                (token(&["a"], &["x"], &[]), true),
                (token(&["b"], &[], &[]), false),
                (token(&[], &["a:*"], &[]), false),
                (token(&["a"], &[], &[Operation::Write]), false),
                (Principal::Anonymous, true),
                (Principal::Admin, true),
            ] {
                let checked = check(&principal, access);
                assert_eq!(checked.is_ok(), allowed, "{principal:?} {access:?}");
                assert_eq!(visible(&principal, &Settings::default()).prompt("a", "p"), allowed);
                if let Err(denial) = checked {
                    assert_eq!(denial.to_string(), format!("Token 'ci' does not allow {shown}"));
                }
            }
        }
    }

    #[test]
    fn a_name_is_known_to_whom_it_could_be_of_use() {
        let settings = Settings::default();
        for (principal, name, known) in [
            (token(&["a"], &[], &[]), "a:x", true),
            (token(&["a"], &[], &[]), "b:x", false),
            (token(&[], &["a:get_*"], &[]), "a:get_x", true),
            (token(&[], &["a:get_*"], &[]), "a:x", false),
            (token(&[], &[], &[Operation::Read]), "b:x", true),
            (Principal::Anonymous, "b:x", true),
        ] {
            let name = ToolName::parse(name).unwrap();
            assert_eq!(
                visible(&principal, &settings).may_name(&name),
                known,
                "{principal:?} {name}"
            );
        }
    }

    #[test]
    fn a_list_shows_what_could_be_called_and_nothing_else() {
        for annotations in [READ_ONLY, UNMARKED, DESTRUCTIVE] {
            for principal in [
                token(&[], &[], &[]),
                token(&["b"], &[], &[]),
                token(&[], &["x*"], &[Operation::Read]),
                token(&["a"], &[], &[Operation::Write]),
                Principal::Admin,
            ] {
                let tool = tool("a:x", annotations);
                let access = Access::Tool(ToolAccess::direct(Arc::clone(&tool)));
                let settings = Settings::default();
                let visible = visible(&principal, &settings);
                let seen = visible.tool(&tool);
                assert_eq!(seen, check(&principal, &access).is_ok(), "{principal:?} {annotations}");
                assert!(seen || !visible.is_all());
            }
        }
    }
}

//! Scope of an agent token (servers, tool patterns, operations), and the visibility of lists for a principal.
//!
//! The operation of a call is the greater of the stated one and the one recommended for the tool: a token limits an
//! agent, which cannot widen its scope by stating less.

use std::sync::Arc;

use super::denial::Denial;
use super::intent::Operation;
use super::permit::Settings;
use super::principal::{AgentToken, Principal, Scope};
use super::request::{Access, Reference};
use super::rules::{RuleSet, Subject};
use super::tool::{Pattern, Tool, ToolName};

/// Maximum number of names of a scope that a denial shows.
const MAX_SHOWN: usize = 5;

/// Scope that limits the principal; `None` if its access is not limited by a scope.
pub(super) fn of(principal: &Principal) -> Option<&Scope> {
    match principal {
        Principal::Anonymous
        | Principal::Admin
        | Principal::Subject(_)
        | Principal::Certificate(_) => None,
        Principal::Token(token) => Some(token.scope()).filter(|scope| **scope != Scope::default()),
    }
}

/// Denies a request outside the scope of the principal's token.
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
            Access::Tool(call) => self.has_call(call.tool(), call.operation()),
            Access::Task(task) => self.has_call(task.call().tool(), task.call().operation()),
            // Unsubscribing is checked too, because an answer would confirm that the server exists.
            Access::Resource { server, .. }
            | Access::Prompt { server, .. }
            | Access::Completion { server, .. } => self.has_offers(server),
            // The effect of a method is unknown, as for a tool without annotations.
            Access::Method { server, .. } => {
                self.has_offers(server) && self.has_operation(Operation::Write)
            }
        }
    }

    fn has_call(&self, tool: &Tool, operation: Operation) -> bool {
        let known = Operation::recommended(tool.capability);
        self.has_tool(&tool.name) && self.has_operation(operation.max(known))
    }

    /// Whether lists show the tool: only tools that could be called.
    pub(super) fn shows_tool(&self, tool: &Tool) -> bool {
        self.has_tool(&tool.name) && self.has_operation(Operation::recommended(tool.capability))
    }

    fn has_server(&self, server: &str) -> bool {
        self.servers.is_empty() || self.servers.iter().any(|name| **name == *server)
    }

    /// Whether the scope includes a tool of this name.
    pub(super) fn has_tool(&self, name: &ToolName) -> bool {
        let fits = |pattern: &Pattern| match pattern.as_str().split_once(':') {
            Some(_) => pattern.matches(&name.to_string()),
            None => pattern.matches(&name.tool),
        };
        self.has_server(&name.server) && (self.tools.is_empty() || self.tools.iter().any(fits))
    }

    /// Part of the scope that excludes a request to this server, tried in this order: servers, tools, operations.
    /// `tool` is the tool of a call.
    fn limit_of(&self, server: &str, tool: Option<&ToolName>) -> String {
        let is_in_tools = match tool {
            Some(name) => self.has_tool(name),
            None => !self.servers.is_empty() || self.tools.is_empty(),
        };
        if !self.has_server(server) {
            quoted("server", self.servers.iter().map(|name| &**name))
        } else if !is_in_tools {
            quoted("tool", self.tools.iter().map(Pattern::as_str))
        } else {
            quoted("operation", self.operations.iter().map(|operation| operation.as_str()))
        }
    }

    fn has_operation(&self, operation: Operation) -> bool {
        self.operations.is_empty() || self.operations.contains(&operation)
    }

    /// Whether the scope includes the server's resources and prompts.
    pub(super) fn has_offers(&self, server: &str) -> bool {
        let for_tools_alone = self.servers.is_empty() && !self.tools.is_empty();
        !for_tools_alone && self.has_server(server) && self.has_operation(Operation::Read)
    }
}

/// Denial of a call by the scope of the token `name`, in advance; `None` if the scope includes the call.
pub fn token_denial(
    name: &str,
    scope: &Scope,
    tool: &Tool,
    operation: Operation,
) -> Option<Denial> {
    let denial = || Denial::Scope {
        token: name.into(),
        access: format!("tool '{}'", tool.name).into(),
        limit: scope.limit_of(&tool.name.server, Some(&tool.name)).into(),
    };
    (!scope.has_call(tool, operation)).then(denial)
}

fn refused(token: &AgentToken, on: &Access) -> Denial {
    let access = match on {
        Access::Tool(call) => format!("tool '{}'", call.tool().name),
        Access::Resource { server, uri, .. } => format!("resource '{uri}' of '{server}'"),
        Access::Prompt { server, name } => format!("prompt '{name}' of '{server}'"),
        Access::Completion { server, of } => match of {
            Reference::Prompt(name) => format!("completions for prompt '{name}' of '{server}'"),
            Reference::Resource(uri) => format!("completions for resource '{uri}' of '{server}'"),
        },
        Access::Method { server, method } => format!("method '{method}' of '{server}'"),
        Access::Task(task) => format!("tool '{}'", task.call().tool().name),
    };
    let limit = token.scope().limit_of(on.server(), on.tool().map(|tool| &tool.name));
    Denial::Scope { token: token.name().into(), access: access.into(), limit: limit.into() }
}

/// Quotes at most [`MAX_SHOWN`] names, and counts the others.
fn quoted<'a>(what: &str, names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let (count, plural) = (names.len(), if names.len() == 1 { "" } else { "s" });
    let shown: Vec<_> = names.take(MAX_SHOWN).map(|name| format!("'{name}'")).collect();
    let more = match count.saturating_sub(MAX_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{what}{plural} {}{more}", shown.join(", "))
}

pub(super) fn subject(principal: &Principal) -> Subject<'_> {
    Subject { id: principal.id(), groups: principal.groups() }
}

/// Filter of lists for one principal: hides entries that it could not request, as far as this is known in advance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visibility<'a> {
    /// Scope of the principal's token; `None` if unlimited.
    scope: Option<&'a Scope>,
    /// Subject and rules; `None` if there are no rules.
    rules: Option<(Subject<'a>, &'a RuleSet)>,
}

/// Filter of lists for `principal` under these settings.
pub fn visible<'a>(principal: &'a Principal, settings: &'a Settings) -> Visibility<'a> {
    Visibility {
        scope: of(principal),
        rules: settings.rules.as_deref().map(|rules| (subject(principal), rules)),
    }
}

impl Visibility<'_> {
    /// Whether everything is shown.
    pub fn is_all(&self) -> bool {
        self.scope.is_none() && self.rules.is_none()
    }

    /// Whether rules are evaluated.
    pub fn is_ruled(&self) -> bool {
        self.rules.is_some()
    }

    pub fn tool(&self, tool: &Arc<Tool>) -> bool {
        self.in_scope(tool)
            && self.rules.is_none_or(|(subject, rules)| rules.shows_tool(subject, tool))
    }

    /// Filter for long lists: evaluates rules for the first `max_evaluated` tools that reach them and hides the rest.
    pub fn first_tools(self, max_evaluated: usize) -> impl FnMut(&Arc<Tool>) -> bool {
        let mut left = max_evaluated;
        move |tool| {
            self.in_scope(tool)
                && self.rules.is_none_or(|(subject, rules)| {
                    let asked = left > 0;
                    left = left.saturating_sub(1);
                    asked && rules.shows_tool(subject, tool)
                })
        }
    }

    /// Whether the token's scope includes calls of this operation.
    pub fn operation(&self, operation: Operation) -> bool {
        self.scope.is_none_or(|scope| scope.has_operation(operation))
    }

    /// Whether the token's scope includes the tool; rules are not evaluated.
    pub fn in_scope(&self, tool: &Tool) -> bool {
        self.scope.is_none_or(|scope| scope.shows_tool(tool))
    }

    /// Whether the token's scope includes a tool of this name; if not, errors must not reveal its server.
    pub fn may_name(&self, name: &ToolName) -> bool {
        self.scope.is_none_or(|scope| scope.has_tool(name))
    }

    /// Whether the server with these tools may be revealed to the principal: true if any of its tools, resources or
    /// prompts could be shown. Evaluates rules once for its resources, once for its prompts, and for at most
    /// `max_evaluated` tools.
    pub fn server(&self, server: &str, tools: &[Arc<Tool>], max_evaluated: usize) -> bool {
        let offers = self.scope.is_none_or(|scope| scope.has_offers(server));
        match self.rules {
            None => offers || tools.iter().any(|tool| self.in_scope(tool)),
            Some(_) => {
                let apart = tools.len().div_ceil(max_evaluated.max(1)).max(1);
                let shown = self.first_tools(max_evaluated);
                self.resource(server, "")
                    || self.prompt(server, "")
                    || tools.iter().step_by(apart).any(shown)
            }
        }
    }

    pub fn resource(&self, server: &str, uri: &str) -> bool {
        self.scope.is_none_or(|scope| scope.has_offers(server))
            && self.rules.is_none_or(|(subject, rules)| rules.shows_resource(subject, server, uri))
    }

    pub fn prompt(&self, server: &str, name: &str) -> bool {
        self.scope.is_none_or(|scope| scope.has_offers(server))
            && self.rules.is_none_or(|(subject, rules)| rules.shows_prompt(subject, server, name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intent::{self, Stated};
    use crate::request::ResourceRequest;
    use crate::tool::{Annotations, Rules};
    use crate::{Settings, ToolAccess, visible};

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
    fn scope_limits_server_pattern_and_operation() {
        use Operation::{Destructive, Read, Write};
        for (principal, name, annotations, by, limit) in [
            (token(&[], &[], &[]), "a:x", DESTRUCTIVE, Destructive, None),
            (token(&["a"], &[], &[]), "a:x", UNMARKED, Write, None),
            (token(&["a"], &[], &[]), "b:x", UNMARKED, Write, Some("server 'a'")),
            (token(&[], &["get_*"], &[]), "b:get_x", UNMARKED, Write, None),
            (token(&[], &["a:get_*"], &[]), "b:get_x", UNMARKED, Write, Some("tool 'a:get_*'")),
            (token(&[], &["a:get_*", "b:*x"], &[]), "b:get_x", UNMARKED, Write, None),
            (token(&["a"], &["get_*"], &[]), "b:get_x", UNMARKED, Write, Some("server 'a'")),
            (token(&[], &[], &[Read]), "a:x", READ_ONLY, Read, None),
            (token(&[], &[], &[Read]), "a:x", READ_ONLY, Write, Some("operation 'read'")),
            // The stated operation `read` does not make an unmarked tool read-only.
            (token(&[], &[], &[Read]), "a:x", UNMARKED, Read, Some("operation 'read'")),
            (token(&[], &[], &[Read, Write]), "a:x", UNMARKED, Read, None),
            (
                token(&[], &[], &[Read, Write]),
                "a:x",
                DESTRUCTIVE,
                Destructive,
                Some("operations 'read', 'write'"),
            ),
            (
                token(&[], &[], &[Destructive]),
                "a:x",
                READ_ONLY,
                Read,
                Some("operation 'destructive'"),
            ),
        ] {
            let denied = check(&principal, &called(name, annotations, by)).err();
            let expected = limit.map(|limit| {
                format!("Token 'ci' does not allow tool '{name}': it is limited to {limit}")
            });
            let denied = denied.map(|denial| denial.to_string());
            assert_eq!(denied, expected, "{principal:?} {name} {annotations} {by:?}");
        }
        let many: Vec<String> = (0..8).map(|at| format!("s{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let denial = check(&token(&many, &[], &[]), &called("b:x", UNMARKED, Write)).unwrap_err();
        let text = denial.to_string();
        assert!(text.ends_with("servers 's0', 's1', 's2', 's3', 's4' and 3 more"), "{text}");
    }

    #[test]
    fn scope_limits_resources_and_prompts_by_server() {
        let server: Arc<str> = "a".into();
        let resource = |request| {
            let uri = "f:1".into();
            (
                Access::Resource { server: Arc::clone(&server), uri, request },
                "resource 'f:1' of 'a'",
            )
        };
        let prompt = Access::Prompt { server: Arc::clone(&server), name: "p".into() };
        let of = Reference::Resource("f:{x}".into());
        let completion = Access::Completion { server: Arc::clone(&server), of };
        let all = [
            resource(ResourceRequest::Read),
            resource(ResourceRequest::Subscribe),
            resource(ResourceRequest::Unsubscribe),
            resource(ResourceRequest::ReadDirectory),
            resource(ResourceRequest::GetSkill),
            (prompt, "prompt 'p' of 'a'"),
            (completion, "completions for resource 'f:{x}' of 'a'"),
        ];
        for (access, shown) in &all {
            for (principal, limit) in [
                (token(&[], &[], &[]), None),
                (token(&["a"], &["x"], &[]), None),
                (token(&["b"], &[], &[]), Some("server 'b'")),
                (token(&[], &["a:*"], &[]), Some("tool 'a:*'")),
                (token(&["a"], &[], &[Operation::Write]), Some("operation 'write'")),
                (Principal::Anonymous, None),
                (Principal::Admin, None),
            ] {
                let denied = check(&principal, access).err().map(|denial| denial.to_string());
                let expected = limit.map(|limit| {
                    format!("Token 'ci' does not allow {shown}: it is limited to {limit}")
                });
                assert_eq!(denied, expected, "{principal:?} {access:?}");
                let is_shown = visible(&principal, &Settings::default()).prompt("a", "p");
                assert_eq!(is_shown, limit.is_none(), "{principal:?} {access:?}");
            }
        }
    }

    #[test]
    fn tool_name_is_revealed_only_within_scope() {
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
    fn list_shows_only_tools_that_the_principal_may_call() {
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

//! Messages for filters that select nothing, or that name something unknown.

use crate::args::{ActivityFilters, Global, RecordFilters};
use crate::backend::Backend;
use crate::terminal_safe::line;
use crate::{completion, start_proxy};
use mcpproxy_runtime::nearest::nearest;

/// Names of the servers of the running proxy, or of the config if none runs; empty if they cannot be read.
async fn known_servers(backend: &Backend, global: &Global) -> Vec<String> {
    if let Backend::Local(_) = backend {
        let loaded = start_proxy::load(global, None).ok();
        let servers = loaded.map(|loaded| loaded.config.servers).unwrap_or_default();
        return servers.iter().map(|server| server.name.to_string()).collect();
    }
    completion::names(backend, "servers").await.unwrap_or_default()
}

/// Message if no record matches the filters, with a sentence about the filter that is probably wrong.
pub(super) async fn nothing_found(
    filters: &ActivityFilters,
    searched: Option<&str>,
    backend: &Backend,
    global: &Global,
) -> String {
    let records = &filters.records;
    let hint = match wrong_name(records, backend, global).await {
        Some(hint) => Some(hint),
        None => {
            let others = [
                &records.kind,
                &records.server,
                &records.tool,
                &records.status,
                &records.intent_type,
                &records.session,
                &records.request_id,
                &records.principal,
                &filters.node,
                &filters.since,
                &filters.until,
            ];
            let count = others.iter().filter(|it| it.is_some()).count() + searched.iter().count();
            (count > 1).then(|| "Filters combine; drop one to see more.".to_owned())
        }
    };
    match hint {
        Some(hint) => format!("No activity found. {hint}"),
        None => "No activity found.".to_owned(),
    }
}

/// Sentence about a filter that names something unknown; `None` if none does.
pub(super) async fn wrong_name(
    filters: &RecordFilters,
    backend: &Backend,
    global: &Global,
) -> Option<String> {
    let (server, tool) = filters.server_and_tool();
    let principal = filters.principal.as_deref();
    let lists = [("--server", server), ("--tool", tool), ("--principal", principal)];
    if let Some(hint) = list_hint(&lists) {
        return Some(hint);
    }
    if let (Some(server), Some((other, _))) = (server, tool.and_then(|it| it.split_once(':')))
        && !tool.is_some_and(|it| it.contains("://"))
    {
        return Some(format!(
            "--server names '{}', and --tool a tool of '{}'.",
            line(server),
            line(other)
        ));
    }
    if let Some(server) = server
        && let Some(hint) = server_hint(server, &known_servers(backend, global).await)
    {
        return Some(hint);
    }
    if let Some(tool) = tool {
        let name = server.map_or_else(|| tool.to_owned(), |server| format!("{server}:{tool}"));
        if let Some(hint) = tool_hint(&name, backend).await {
            return Some(hint);
        }
    }
    let principal = principal?;
    match principal.strip_prefix("token:") {
        Some(token) => {
            let known = completion::names(backend, "tokens").await;
            completion::unknown_token(token, known).map(|unknown| format!("There is {unknown}"))
        }
        None => kind_hint(principal),
    }
}

/// Sentence about a filter with a list of values although it takes one; `None` if there is none.
fn list_hint(filters: &[(&str, Option<&str>)]) -> Option<String> {
    let has_list = |(_, value): &&(&str, Option<&str>)| value.is_some_and(|it| it.contains(','));
    let (option, _) = filters.iter().find(has_list)?;
    Some(format!("{option} takes one value; run the command once for each."))
}

/// Sentence about a server that is none of the `known` ones; `None` if it is, or if none is known.
fn server_hint(server: &str, known: &[String]) -> Option<String> {
    let is_unknown = !known.is_empty() && known.iter().all(|it| it != server);
    let nearest = nearest(server, known.iter().map(String::as_str));
    let suggestion = completion::advice(nearest, Some("mcpproxy upstream list"));
    is_unknown.then(|| format!("There is no server '{}'{suggestion}", line(server)))
}

/// Sentence about a tool that no server has, with a similar one; `None` if one has it, or if none is similar.
async fn tool_hint(name: &str, backend: &Backend) -> Option<String> {
    let nearest = completion::unknown_tool(backend, name).await?;
    let suggestion = completion::advice(Some(&nearest), None);
    Some(format!("No server has a tool '{}' now{suggestion}", line(name)))
}

/// Sentence about a principal without its kind; `None` if it has one.
fn kind_hint(principal: &str) -> Option<String> {
    if principal.contains(':') || completion::WITHOUT_KIND.contains(&principal) {
        return None;
    }
    let name = line(principal);
    let typed = principal.to_ascii_lowercase();
    Some(match nearest(&typed, completion::WITHOUT_KIND) {
        Some(meant) => format!("There is no principal '{name}': did you mean {meant}?"),
        None => format!("Principals have a kind, such as token:{name} or cert:{name}."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_server_gets_a_suggestion_if_nothing_is_found() {
        let known = ["files".to_owned(), "git".to_owned()];
        let hint = |server: &str| server_hint(server, &known);
        let expected = "There is no server 'filez': did you mean files?";
        assert_eq!(hint("filez").as_deref(), Some(expected));
        let unlike = "There is no server 'zzzzzz': `mcpproxy upstream list` lists them";
        assert_eq!(hint("zzzzzz").as_deref(), Some(unlike));
        assert_eq!(hint("files"), None);
        assert_eq!(server_hint("filez", &[]), None);
    }

    #[test]
    fn filter_that_takes_one_value_is_named_if_it_has_several() {
        let hint = |server, principal| {
            list_hint(&[("--server", server), ("--tool", None), ("--principal", principal)])
        };
        let expected = "--server takes one value; run the command once for each.";
        assert_eq!(hint(Some("files,git"), None).as_deref(), Some(expected));
        assert!(hint(None, Some("admin,token:ci")).unwrap().starts_with("--principal takes"));
        assert_eq!(hint(Some("files"), Some("admin")), None);
        assert!(kind_hint("ci").unwrap().contains("token:ci"));
        assert!(kind_hint("Admin").unwrap().ends_with("did you mean admin?"));
        assert_eq!([kind_hint("admin"), kind_hint("jwt:a")], [None, None]);
    }
}

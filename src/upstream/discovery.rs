//! Tool discovery: reads a server's list of tools, page by page.
//!
//! Elements keep the server's own bytes. Sans-I/O: the caller sends the requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::error::Cause;
use crate::handshake::Greeting;
use crate::request::Params;
use crate::server_log::ServerLog;
use crate::state::FetchFailure;
use mcpproxy_catalog::definition::DiscoveredTool;
use mcpproxy_catalog::{ListNote, ListNotes, NoteAction};
use mcpproxy_protocol::mcp::jsonrpc::Code;
use mcpproxy_protocol::mcp::lifecycle::ServerResponse;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Method of the list.
pub(super) const METHOD: &str = "tools/list";
/// Maximum number of pages.
const MAX_PAGES: usize = 1000;
/// Maximum number of tools of one server.
const MAX_TOOLS: usize = 20_000;
/// Maximum size of all pages together, in bytes.
pub(super) const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size in bytes of a cursor, which the proxy sends back.
const MAX_CURSOR_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    next_cursor: Option<&'a RawValue>,
}

/// Whether requests to the server repeat parameters in headers, which makes a tool's header annotations relevant
/// (MCP 2026-07-28 §Schema Extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    Repeat,
    Ignore,
}

/// Tools that were read from a server.
#[derive(Debug, Default)]
pub(super) struct ReadTools {
    pub(super) tools: Vec<DiscoveredTool>,
    /// Reason why the list is incomplete.
    pub(super) partial: Option<Partial>,
}

/// Reason why only the first pages of a list were read.
#[derive(Debug)]
pub(super) struct Partial {
    /// Reason in one line.
    pub(super) reason: String,
    /// Set if a later attempt may read the rest.
    pub(super) failure: Option<ListFailure>,
}

/// Reason why a list, or one of its pages, could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListFailure {
    /// Reason in one line.
    pub(super) reason: String,
    /// Whether the session or the connection is lost.
    pub(super) ends_connection: bool,
    /// Set if the server rate-limits requests; contains the delay that it requested, if any.
    pub(super) throttled: Option<Option<Duration>>,
}

impl From<String> for ListFailure {
    fn from(reason: String) -> Self {
        Self { reason, ends_connection: false, throttled: None }
    }
}

impl From<FetchFailure> for ListFailure {
    fn from(FetchFailure { cause, ends_connection }: FetchFailure) -> Self {
        let throttled = match &cause {
            Cause::Throttled { after, .. } => Some(*after),
            _ => None,
        };
        Self { reason: format!("{METHOD}: {cause}"), ends_connection, throttled }
    }
}

/// A page that was read, or the reason why the list ends before it.
enum PageOutcome {
    Page(Vec<u8>),
    /// The server has no tools.
    NoTools,
    /// The list has reached its maximum size.
    Full,
}

/// Reads the list of tools. `fetch` sends one request and returns a response of at most the given number of bytes.
/// Malformed tools are skipped with a warning. A list that exceeds [`MAX_LIST_BYTES`], [`MAX_TOOLS`] or [`MAX_PAGES`],
/// or whose cursor or later page is unusable, is truncated there and marked as partial. Fails if the first page cannot
/// be read or the connection is lost.
pub(super) async fn discover<F>(
    server_log: &ServerLog,
    greeting: &Greeting,
    headers: Headers,
    fetch: impl Fn(Params, usize) -> F,
) -> Result<ReadTools, ListFailure>
where
    F: Future<Output = Result<Vec<u8>, FetchFailure>>,
{
    let mut tools = Vec::new();
    let mut notes = ListNotes::default();
    let mut remaining = MAX_LIST_BYTES;
    let mut cursors = HashSet::new();
    let mut params = "{}".to_owned();
    let cut = |tools, notes, reason: String| {
        server_log.keep_list_notes(notes);
        Ok(ReadTools { tools, partial: Some(Partial { reason, failure: None }) })
    };
    for number in 1..=MAX_PAGES {
        let read = read_page(server_log, greeting, &fetch, (params, remaining)).await;
        let parsed = match &read {
            Ok(PageOutcome::Page(page)) => parse_page(server_log, page),
            Ok(PageOutcome::NoTools) if number == 1 => return Ok(ReadTools::default()),
            Ok(PageOutcome::NoTools) => Err(format!("it refused {METHOD}").into()),
            Ok(PageOutcome::Full) => {
                return cut(tools, notes, format!("it is longer than {MAX_LIST_BYTES} bytes"));
            }
            Err(failure) => Err(failure.clone()),
        };
        let (list, length) = match parsed {
            Ok(parsed) => parsed,
            Err(failure) if number == 1 || failure.ends_connection => return Err(failure),
            Err(failure) => {
                let reason = format!("page {number} cannot be read: {}", failure.reason);
                let partial = Some(Partial { reason, failure: Some(failure) });
                server_log.keep_list_notes(notes);
                return Ok(ReadTools { tools, partial });
            }
        };
        remaining = remaining.saturating_sub(length);
        if list.tools.is_none() {
            skipped(server_log, &mut notes, "", "the result has no array 'tools'");
        }
        for raw in list.tools.unwrap_or_default() {
            match DiscoveredTool::parse(raw) {
                Ok(_) if tools.len() >= MAX_TOOLS => {
                    return cut(tools, notes, format!("it has more than {MAX_TOOLS} tools"));
                }
                Ok(DiscoveredTool { name, parameter_headers: Err(reason), .. })
                    if headers == Headers::Repeat =>
                {
                    let name = server_log.quote(name.as_bytes());
                    skipped(server_log, &mut notes, &name, &reason.to_string());
                }
                Ok(tool) => tools.push(tool),
                Err(reason) => {
                    skipped(server_log, &mut notes, &tool_name(server_log, raw), &reason);
                }
            }
        }
        let Some(cursor) = list.next_cursor else {
            server_log.keep_list_notes(notes);
            return Ok(ReadTools { tools, partial: None });
        };
        let Ok(cursor) = serde_json::from_str::<String>(cursor.get()) else {
            return cut(tools, notes, format!("nextCursor of page {number} is not a string"));
        };
        if cursor.len() > MAX_CURSOR_BYTES {
            let limit = MAX_CURSOR_BYTES;
            return cut(
                tools,
                notes,
                format!("nextCursor of page {number} is longer than {limit} bytes"),
            );
        }
        params = serde_json::json!({ "cursor": cursor }).to_string();
        if !cursors.insert(cursor) {
            return cut(
                tools,
                notes,
                format!("nextCursor of page {number} repeats an earlier one"),
            );
        }
    }
    cut(tools, notes, format!("it has more than {MAX_PAGES} pages"))
}

async fn read_page<F>(
    server_log: &ServerLog,
    greeting: &Greeting,
    fetch: &impl Fn(Params, usize) -> F,
    (params, remaining): (String, usize),
) -> Result<PageOutcome, ListFailure>
where
    F: Future<Output = Result<Vec<u8>, FetchFailure>>,
{
    let page = match fetch(Params::of(METHOD, params.into()), remaining).await {
        Err(FetchFailure { cause: Cause::TooLong { .. }, .. }) if remaining < MAX_LIST_BYTES => {
            return Ok(PageOutcome::Full);
        }
        page => page?,
    };
    let error = match ServerResponse::parse(&page) {
        Some(ServerResponse { outcome: Err(error), .. }) => error,
        Some(_) | None => return Ok(PageOutcome::Page(page)),
    };
    if error.code == Code::MethodNotFound as i64 || !greeting.about.offers.tools {
        return Ok(PageOutcome::NoTools);
    }
    Err(format!("it refused {METHOD}: {}", server_log.quote(error.message)).into())
}

/// Parses the list on a page. Returns the list and its length in bytes.
fn parse_page<'a>(
    server_log: &ServerLog,
    page: &'a [u8],
) -> Result<(List<'a>, usize), ListFailure> {
    let unreadable = |error: serde_json::Error| {
        let reason = server_log.quote(error.to_string());
        ListFailure::from(format!("its answer to {METHOD} cannot be read: {reason}"))
    };
    let Some(response) = ServerResponse::parse(page) else {
        serde_json::from_slice::<IgnoredAny>(page).map_err(unreadable)?;
        return Err(format!("its answer to {METHOD} contains no result").into());
    };
    match response.outcome {
        Ok(result) => {
            let list = serde_json::from_str(result.get()).map_err(unreadable)?;
            Ok((list, page.len()))
        }
        // Handled by the caller.
        Err(error) => Err(server_log.quote(error.message).to_string().into()),
    }
}

fn skipped(server_log: &ServerLog, notes: &mut ListNotes, tool: &str, reason: &str) {
    let reason = server_log.quote(reason);
    peer_line!(warn, server_log, server = %server_log.name, tool, %reason, "skipped a malformed tool");
    notes.add(ListNote::new("tools/list", tool, NoteAction::Omitted, &reason));
}

/// Name of an unreadable tool, for the warning.
fn tool_name(server_log: &ServerLog, raw: &RawValue) -> Arc<str> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(raw.get())
        .map_or_else(|_| "(no name)".into(), |named| server_log.quote(named.name))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::request::Fields;
    use crate::state::About;
    use mcpproxy_protocol::mcp::capabilities::ServerCapabilities;

    /// Names, and the reason why the list is partial.
    type Names = (Vec<String>, Option<String>);

    fn names(read: ReadTools) -> Names {
        let names = read.tools.iter().map(|tool| tool.name.to_string()).collect();
        (names, read.partial.map(|partial| partial.reason))
    }

    /// Discovers the tools on these pages. Returns their names or the error, and the params of each request.
    async fn discovered(pages: &[&str]) -> (Result<Vec<String>, String>, Vec<String>) {
        let (read, requested) = discovered_by(Headers::Ignore, pages).await;
        (read.map(|(names, _)| names), requested)
    }

    async fn discovered_by(
        headers: Headers,
        pages: &[&str],
    ) -> (Result<Names, String>, Vec<String>) {
        let requested = Mutex::new(Vec::new());
        let greeting = Greeting {
            about: About {
                offers: ServerCapabilities { tools: true, ..ServerCapabilities::default() },
                ..About::default()
            },
            ..Greeting::default()
        };
        let tools = discover(&ServerLog::default(), &greeting, headers, |params, remaining| {
            let mut requested = requested.lock();
            let page = pages[requested.len().min(pages.len() - 1)].as_bytes().to_vec();
            requested.push(String::from_utf8(object(&params)).unwrap());
            async move {
                match page.len() <= remaining {
                    true => Ok(page),
                    false => Err(Cause::TooLong { limit: remaining }.into()),
                }
            }
        })
        .await;
        let read = tools.map(names).map_err(|failure| failure.reason);
        (read, requested.into_inner())
    }

    fn object(params: &Params) -> Vec<u8> {
        match &params.fields {
            Fields::Object(object) => object.to_vec(),
            Fields::Call { .. } => panic!("no call is made"),
        }
    }

    #[tokio::test]
    async fn paged_list_is_read_completely() {
        let (names, requested) = discovered(&[
            r#"{"id":1,"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"p\"2"}}"#,
            r#"{"result":{"nextCursor":null,"tools":[{"name":"b","inputSchema":{}}]},"id":2}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "b"]);
        assert_eq!(requested, ["{}", r#"{"cursor":"p\"2"}"#]);
    }

    #[tokio::test]
    async fn list_size_is_bounded_over_all_pages() {
        const PAGE: usize = 3 * 1024 * 1024;
        let requested = std::cell::Cell::new(0);
        let filler = "x".repeat(PAGE);
        let server_log = ServerLog::default();
        let greeting = Greeting::default();
        let tools = discover(&server_log, &greeting, Headers::Ignore, |_, remaining| {
            requested.set(requested.get() + 1);
            let page = format!(
                r#"{{"result":{{"x":"{filler}","tools":[{{"name":"t{n}","inputSchema":{{}}}}],"nextCursor":"{n}"}}}}"#,
                n = requested.get()
            );
            async move {
                match page.len() <= remaining {
                    true => Ok(page.into_bytes()),
                    false => Err(Cause::TooLong { limit: remaining }.into()),
                }
            }
        });
        let (names, partial) = names(tools.await.unwrap());
        assert_eq!(names.len(), MAX_LIST_BYTES / PAGE, "earlier pages are kept");
        assert_eq!(partial.unwrap(), format!("it is longer than {MAX_LIST_BYTES} bytes"));
        assert_eq!(requested.get(), MAX_LIST_BYTES / PAGE + 1);
    }

    #[tokio::test]
    async fn mcp_2026_tool_with_invalid_headers_is_skipped_where_headers_are_sent() {
        let page = r#"{"result":{"tools":[
            {"name":"a","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}},
            {"name":"b","inputSchema":{"properties":{"p":{"type":"number","x-mcp-header":"P"}}}},
            {"name":"c","inputSchema":{}}]}}"#;
        for (headers, expected) in
            [(Headers::Repeat, &["a", "c"][..]), (Headers::Ignore, &["a", "b", "c"])]
        {
            assert_eq!(discovered_by(headers, &[page]).await.0.unwrap().0, expected, "{headers:?}");
        }
    }

    #[tokio::test]
    async fn malformed_tool_is_skipped() {
        let (names, _) = discovered(&[
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}},{"name":""},7,{"name":"c","inputSchema":{}}]}}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "c"]);
    }

    #[tokio::test]
    async fn pro_11_pages_before_an_unusable_cursor_or_page_are_kept() {
        const NEXT: &str =
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"x"}}"#;
        let with_cursor = |cursor: &str| NEXT.replace("\"x\"", cursor);
        let (number, object) = (with_cursor("7"), with_cursor("{}"));
        let second = "page 2 cannot be read: ";
        for (pages, names, partial) in [
            (&[&*number][..], &["a"][..], "nextCursor of page 1 is not a string".to_owned()),
            (&[&object], &["a"], "nextCursor of page 1 is not a string".to_owned()),
            (&[NEXT], &["a", "a"], "nextCursor of page 2 repeats an earlier one".to_owned()),
            (
                &[NEXT, r#"{"error":{"code":-32603,"message":"no"}}"#],
                &["a"],
                format!("{second}it refused tools/list: no"),
            ),
            (
                &[NEXT, r#"{"result":null}"#],
                &["a"],
                format!("{second}its answer to tools/list contains no result"),
            ),
            (
                &[NEXT, "{"],
                &["a"],
                format!(
                    "{second}its answer to tools/list cannot be read: EOF while parsing an object \
                     at line 1 column 1"
                ),
            ),
        ] {
            let (read, _) = discovered_by(Headers::Ignore, pages).await;
            let (found, reason) = read.unwrap();
            assert_eq!(
                (&found[..], reason),
                (&names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..], Some(partial)),
                "{pages:?}"
            );
        }
    }

    #[tokio::test]
    async fn pro_11_lost_session_on_a_later_page_is_an_error() {
        let (server_log, greeting) = (ServerLog::default(), Greeting::default());
        let pages = std::cell::Cell::new(0);
        let read = discover(&server_log, &greeting, Headers::Ignore, |_, _| {
            pages.set(pages.get() + 1);
            let first = pages.get() == 1;
            async move {
                if first {
                    return Ok(br#"{"result":{"tools":[],"nextCursor":"x"}}"#.to_vec());
                }
                let cause = Cause::Status { status: 404, message: "gone".into() };
                Err(FetchFailure { cause, ends_connection: true })
            }
        });
        let failure = read.await.unwrap_err();
        assert_eq!(failure.reason, "tools/list: the server answered HTTP 404: gone");
        assert!(failure.ends_connection);
    }

    #[tokio::test]
    async fn refusal_is_an_error_and_missing_method_means_no_tools() {
        let (names, _) = discovered(&[r#"{"error":{"code":-32000,"message":"not\nnow"}}"#]).await;
        assert_eq!(names.unwrap_err(), "it refused tools/list: not now");
        let (names, _) = discovered(&[r#"{"error":{"code":-32601,"message":"?"}}"#]).await;
        assert_eq!(names.unwrap(), Vec::<String>::new());
        let (names, _) = discovered(&["{}"]).await;
        assert_eq!(names.unwrap_err(), "its answer to tools/list contains no result");
    }
}

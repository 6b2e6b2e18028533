//! Discovery: the list of tools of one server, read page by page.
//!
//! It is read raw, since rmcp's model of a tool loses fields. Who sends the requests is not known
//! here.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::Cause;
use super::lifecycle::Greeting;
use super::peer::Peer;
use super::request::Params;
use crate::catalog::discovered::DiscoveredTool;
use crate::mcp::jsonrpc::Code;

/// Most pages of a list of tools.
const MAX_PAGES: usize = 1000;
/// Most tools of one server.
const MAX_TOOLS: usize = 20_000;
/// Most bytes of a list of tools, all its pages together.
pub(super) const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Most bytes of one page's cursor, which is sent back.
const MAX_CURSOR_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    result: Option<List<'a>>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    #[serde(default)]
    message: String,
}

/// Whether headers repeat parts of a request to a server: what its tools say of them counts there,
/// and nowhere else (MCP 2026-07-28 §Schema Extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    Repeat,
    SayNothing,
}

/// Reads the whole list of tools. `fetch` sends one request and returns the response's bytes, at
/// most as many as it is told. A malformed tool is left out with a warning that names it; the rest
/// is kept. Of a list that outgrows [`MAX_LIST_BYTES`], [`MAX_TOOLS`] or [`MAX_PAGES`] the pages
/// and tools before are kept; of one whose first page does, nothing.
pub(super) async fn discover<F>(
    peer: &Peer,
    greeting: &Greeting,
    headers: Headers,
    fetch: impl Fn(Params, usize) -> F,
) -> Result<Vec<DiscoveredTool>, String>
where
    F: Future<Output = Result<Vec<u8>, Cause>>,
{
    let told = |reason: &str| {
        if peer.may_log() {
            tracing::warn!(server = %peer.name, reason, "a server's list of tools is not read whole");
        }
    };
    let mut tools = Vec::new();
    let mut room = MAX_LIST_BYTES;
    let mut cursors = HashSet::new();
    let mut params = "{}".to_owned();
    for _ in 0..MAX_PAGES {
        let request = Params::of("tools/list", params.into());
        let page = match fetch(request, room).await {
            Err(Cause::TooLong { .. }) if room < MAX_LIST_BYTES => {
                told(&format!("it is longer than {MAX_LIST_BYTES} bytes"));
                return Ok(tools);
            }
            page => page.map_err(|cause| format!("tools/list: {cause}"))?,
        };
        room = room.saturating_sub(page.len());
        let page: Page<'_> = serde_json::from_slice(&page).map_err(|error| {
            format!("its answer to tools/list cannot be read: {}", peer.quote(error.to_string()))
        })?;
        let list = match (page.result, page.error) {
            (Some(list), _) => list,
            (None, Some(error))
                if error.code == Code::MethodNotFound as i64 || !greeting.about.offers.tools =>
            {
                return Ok(Vec::new());
            }
            (None, Some(error)) => {
                let words = peer.quote(error.message);
                return Err(format!("it refused tools/list: {words}"));
            }
            (None, None) => return Err("its answer to tools/list holds no result".to_owned()),
        };
        for raw in list.tools.unwrap_or_default() {
            match DiscoveredTool::parse(raw) {
                Ok(_) if tools.len() >= MAX_TOOLS => {
                    told(&format!("it has more than {MAX_TOOLS} tools"));
                    return Ok(tools);
                }
                Ok(DiscoveredTool { name, parameter_headers: Err(reason), .. })
                    if headers == Headers::Repeat =>
                {
                    left_out(peer, &peer.quote(name.as_bytes()), &reason.to_string());
                }
                Ok(tool) => tools.push(tool),
                Err(reason) => {
                    left_out(peer, &tool_name(peer, raw), &reason);
                }
            }
        }
        let Some(cursor) = list.next_cursor else { return Ok(tools) };
        if cursor.len() > MAX_CURSOR_BYTES {
            told(&format!("a cursor is longer than {MAX_CURSOR_BYTES} bytes"));
            return Ok(tools);
        }
        params = serde_json::json!({ "cursor": cursor }).to_string();
        if !cursors.insert(cursor) {
            told("it goes round in circles");
            return Ok(tools);
        }
    }
    told(&format!("it has more than {MAX_PAGES} pages"));
    Ok(tools)
}

fn left_out(peer: &Peer, tool: &str, reason: &str) {
    if peer.may_log() {
        let reason = peer.quote(reason);
        tracing::warn!(server = %peer.name, tool, %reason, "a malformed tool is left out");
    }
}

/// The name of a tool that is otherwise unreadable, for the warning.
fn tool_name(peer: &Peer, raw: &RawValue) -> Arc<str> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(raw.get())
        .map_or_else(|_| "(no name)".into(), |named| peer.quote(named.name))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::request::Fields;
    use super::super::status::About;
    use super::*;
    use crate::mcp::capabilities::ServerCapabilities;

    /// Discovers from given pages; returns names or the error, and the params that were asked.
    async fn discovered(pages: &[&str]) -> (Result<Vec<String>, String>, Vec<String>) {
        discovered_by(Headers::SayNothing, pages).await
    }

    async fn discovered_by(
        headers: Headers,
        pages: &[&str],
    ) -> (Result<Vec<String>, String>, Vec<String>) {
        let asked = Mutex::new(Vec::new());
        let greeting = Greeting {
            about: About {
                offers: ServerCapabilities { tools: true, ..ServerCapabilities::default() },
                ..About::default()
            },
            ..Greeting::default()
        };
        let tools = discover(&Peer::default(), &greeting, headers, |params, room| {
            let mut asked = asked.lock();
            let page = pages[asked.len().min(pages.len() - 1)].as_bytes().to_vec();
            asked.push(String::from_utf8(object(&params)).unwrap());
            async move {
                match page.len() <= room {
                    true => Ok(page),
                    false => Err(Cause::TooLong { limit: room }),
                }
            }
        })
        .await;
        let names = tools.map(|tools| tools.iter().map(|tool| tool.name.to_string()).collect());
        (names, asked.into_inner())
    }

    fn object(params: &Params) -> Vec<u8> {
        match &params.fields {
            Fields::Object(object) => object.to_vec(),
            Fields::Call { .. } => panic!("no call is made"),
        }
    }

    #[tokio::test]
    async fn a_paged_list_is_read_to_its_end() {
        let (names, asked) = discovered(&[
            r#"{"id":1,"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"p\"2"}}"#,
            r#"{"result":{"nextCursor":null,"tools":[{"name":"b","inputSchema":{}}]},"id":2}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "b"]);
        assert_eq!(asked, ["{}", r#"{"cursor":"p\"2"}"#]);
    }

    #[tokio::test]
    async fn a_list_is_bounded_over_all_its_pages() {
        const PAGE: usize = 3 * 1024 * 1024;
        let asked = std::cell::Cell::new(0);
        let filler = "x".repeat(PAGE);
        let peer = Peer::default();
        let greeting = Greeting::default();
        let tools = discover(&peer, &greeting, Headers::SayNothing, |_, room| {
            asked.set(asked.get() + 1);
            let page = format!(
                r#"{{"result":{{"x":"{filler}","tools":[{{"name":"t{n}","inputSchema":{{}}}}],"nextCursor":"{n}"}}}}"#,
                n = asked.get()
            );
            async move {
                match page.len() <= room {
                    true => Ok(page.into_bytes()),
                    false => Err(Cause::TooLong { limit: room }),
                }
            }
        });
        assert_eq!(tools.await.unwrap().len(), MAX_LIST_BYTES / PAGE, "the pages before are kept");
        assert_eq!(asked.get(), MAX_LIST_BYTES / PAGE + 1);
    }

    #[tokio::test]
    async fn mcp_2026_a_tool_with_invalid_headers_is_left_out_where_headers_are_sent() {
        let page = r#"{"result":{"tools":[
            {"name":"a","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}},
            {"name":"b","inputSchema":{"properties":{"p":{"type":"number","x-mcp-header":"P"}}}},
            {"name":"c","inputSchema":{}}]}}"#;
        for (headers, expected) in
            [(Headers::Repeat, &["a", "c"][..]), (Headers::SayNothing, &["a", "b", "c"])]
        {
            assert_eq!(discovered_by(headers, &[page]).await.0.unwrap(), expected, "{headers:?}");
        }
    }

    #[tokio::test]
    async fn a_malformed_tool_is_left_out_and_the_rest_kept() {
        let (names, _) = discovered(&[
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}},{"name":"b"},7,{"name":"c","inputSchema":{}}]}}"#,
        ])
        .await;
        assert_eq!(names.unwrap(), ["a", "c"]);
    }

    #[tokio::test]
    async fn a_list_that_goes_round_in_circles_ends() {
        let (names, asked) = discovered(&[
            r#"{"result":{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"x"}}"#,
        ])
        .await;
        assert_eq!((names.unwrap().len(), asked.len()), (2, 2));
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_and_a_missing_method_is_no_tools() {
        let (names, _) = discovered(&[r#"{"error":{"code":-32000,"message":"not\nnow"}}"#]).await;
        assert_eq!(names.unwrap_err(), "it refused tools/list: not now");
        let (names, _) = discovered(&[r#"{"error":{"code":-32601,"message":"?"}}"#]).await;
        assert_eq!(names.unwrap(), Vec::<String>::new());
        let (names, _) = discovered(&["{}"]).await;
        assert_eq!(names.unwrap_err(), "its answer to tools/list holds no result");
    }
}

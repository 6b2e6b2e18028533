//! Target `uris`: the rewriter of URIs gives the same output in every split, and for JSON what a document tree gives.
//!
//! Input: a byte that selects the places, a byte that decides the splits, then the server's JSON.

use bytes::Bytes;
use mcpproxy_catalog::exposed;
use mcpproxy_catalog::exposed_uris::{CONTENTS, DIRECTORY, SKILL_RESULT, UriPlace, UriRewriter};
use mcpproxy_protocol::wire::splice::Splice;
use serde_json::Value;

use super::scan::Cutter;

const SERVER: &str = "s v";
/// Maximum size of an input, so small that no URI in it exceeds the limit.
const MAX_BYTES: usize = 4096;

/// Places, with the paths to them; `*` is every element.
const PLACES: [(&UriPlace, &[&[&str]]); 3] = [
    (&CONTENTS, &[&["contents", "*", "uri"]]),
    (&DIRECTORY, &[&["resources", "*", "uri"]]),
    (&SKILL_RESULT, &[&["skill", "uri"], &["skill", "resources", "*", "uri"]]),
];

pub fn run(data: &[u8]) {
    let [which, cuts, json @ ..] = data else { return };
    if json.len() > MAX_BYTES {
        return;
    }
    let (place, paths) = PLACES[usize::from(*which) % PLACES.len()];
    let whole = rewritten(place, &[json]);
    let (mut cutter, mut pieces, mut rest) = (Cutter(u64::from(*cuts)), Vec::new(), json);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cutter.len(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    assert_eq!(rewritten(place, &pieces), whole, "in pieces");
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return };
    for path in paths {
        expose(&mut value, path);
    }
    assert_eq!(serde_json::from_slice::<Value>(&whole).ok(), Some(value), "as a tree");
}

fn rewritten(place: &'static UriPlace, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut rewriter, mut out) = (UriRewriter::new(place, &SERVER.into()), Splice::new());
    for piece in pieces {
        rewriter.feed(&Bytes::copy_from_slice(piece), &mut out);
    }
    rewriter.end(&mut out);
    out.into_iter().collect::<Vec<_>>().concat()
}

fn expose(value: &mut Value, path: &[&str]) {
    match (path, value) {
        ([], Value::String(own)) if !own.is_empty() => *own = exposed::uri(SERVER, own),
        (["*", rest @ ..], Value::Array(elements)) => {
            elements.iter_mut().for_each(|element| expose(element, rest));
        }
        ([name, rest @ ..], Value::Object(members)) if *name != "*" => {
            if let Some(member) = members.get_mut(*name) {
                expose(member, rest);
            }
        }
        _ => {}
    }
}

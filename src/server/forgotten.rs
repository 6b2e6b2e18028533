//! Approvals that an earlier process waited for, and ended without a word: it was killed. Their calls are gone with
//! their connections; that they are forgotten is put on record.

use std::collections::HashSet;

use serde::Deserialize;
use tokio::runtime::Runtime;

use crate::activity::record::{Draft, MAX_METADATA_BYTES, Raw, Source, Status, Text, Type};
use crate::activity::{Activity, Filter, From, Page, Record};

/// Most records that are looked through: more than can wait at once, with what was decided meanwhile.
const MAX_RECORDS: usize = 4096;
/// Records that are read at once.
const PORTION: usize = 100;

/// Looks for them beside the start; each leaves one record.
pub(super) fn note(activity: &Activity, control: &Runtime) {
    let activity = activity.clone();
    control.spawn_blocking(move || {
        for forgotten in find(&activity) {
            activity.note(forgotten);
        }
    });
}

/// The records of approvals that wait, and of which no end is on record, in the life before this one.
fn find(activity: &Activity) -> Vec<Draft> {
    let filter = Filter {
        kinds: vec![Type::Approval, Type::SystemStart, Type::SystemStop],
        ..Filter::default()
    };
    let (mut ended, mut found, mut starts) = (HashSet::new(), Vec::new(), 0);
    let mut from = From::default();
    for _ in 0..MAX_RECORDS / PORTION {
        let page = Page { limit: PORTION, from, ..Page::default() };
        let Ok(listing) = activity.list(&filter, &page) else { break };
        for record in &listing.records {
            if record.head.kind != Type::Approval {
                // Behind its own start is the life before; behind another, or an end in order, nothing is left to
                // find.
                if starts > 0 || record.head.kind == Type::SystemStop {
                    return found;
                }
                starts += 1;
                continue;
            }
            let Some(state) = state(record).filter(|_| starts > 0) else { continue };
            if &*state.state != "waiting" {
                ended.insert(state.approval);
            } else if !ended.contains(&state.approval) {
                found.push(forgotten(record, &state.approval));
            }
        }
        match listing.next_cursor {
            Some(next) => from = From::After(next),
            None => break,
        }
    }
    found
}

#[derive(Deserialize)]
struct State {
    approval: Box<str>,
    state: Box<str>,
}

fn state(record: &Record) -> Option<State> {
    serde_json::from_slice(record.body.metadata()?.bytes()).ok()
}

fn forgotten(record: &Record, approval: &str) -> Draft {
    let head = &record.head;
    let mut draft = Draft::new(Type::Approval, Source::Internal, Status::Error);
    for (text, value) in [
        (Text::Server, &*head.server),
        (Text::Tool, &*head.tool),
        (Text::SessionId, &*head.session_id),
        (Text::RequestId, &*head.request_id),
        (Text::ClientName, &*head.client_name),
        (Text::Principal, &*head.principal),
    ] {
        draft.set(text, value);
    }
    draft.set(Text::Error, "mcpproxy ended without a word while the call waited: it is forgotten");
    let metadata = serde_json::json!({"approval": approval, "state": "forgotten"}).to_string();
    draft.keep(Raw::Metadata, metadata.as_bytes(), MAX_METADATA_BYTES);
    draft
}

//! What upstreams offer beside tools: resources, templates, prompts, completions.

use std::rc::Rc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::proxy::Worker;
use crate::proxy::dispatch::{Peer, Reaction, unknown_method};

/// A list that is made of what the upstreams list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
    /// `prompts/list`
    Prompts,
}

/// A request that goes on to one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// `resources/read`
    Read,
    /// `resources/subscribe`
    Subscribe,
    /// `resources/unsubscribe`
    Unsubscribe,
    /// `prompts/get`
    Prompt,
    /// `completion/complete`
    Complete,
}

/// The capabilities that the upstreams give us to offer, beside `tools` and `logging`.
#[must_use]
pub fn capabilities(_worker: &Worker, _peer: &Peer) -> Map<String, Value> {
    Map::new()
}

/// Answers a list.
#[must_use]
pub fn list(
    _worker: &Rc<Worker>,
    _peer: &Peer,
    id: &Bytes,
    list: List,
    _params: &Bytes,
) -> Reaction {
    let method = match list {
        List::Resources => "resources/list",
        List::Templates => "resources/templates/list",
        List::Prompts => "prompts/list",
    };
    unknown_method(id, method)
}

/// Sends a request on to the upstream it names.
#[must_use]
pub fn forward(
    _worker: &Rc<Worker>,
    _peer: &Peer,
    id: Bytes,
    forward: Forward,
    _params: Bytes,
) -> Reaction {
    let method = match forward {
        Forward::Read => "resources/read",
        Forward::Subscribe => "resources/subscribe",
        Forward::Unsubscribe => "resources/unsubscribe",
        Forward::Prompt => "prompts/get",
        Forward::Complete => "completion/complete",
    };
    unknown_method(&id, method)
}

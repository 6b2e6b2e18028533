//! Questions of the stub to its client: requests during a call, and results that request further input.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The answer of `ask`, in which the word is replaced by the client's answer.
pub(crate) const PLACEHOLDER: &str = r#"{"content":[],"structuredContent":{"answered":"NOTHING"}}"#;
const WORD: &str = r#""NOTHING""#;
/// Maximum time to wait for the client's answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Number of requests sent, and the answers received.
#[derive(Default)]
pub(crate) struct Questions {
    table: Mutex<(u64, HashMap<u64, String>)>,
    came: Condvar,
}

impl Questions {
    /// Creates a request of `method`, by default for sampling; members of `with` replace or extend its own. Returns its
    /// number and the message.
    pub(crate) fn ask(&self, method: Option<&str>, with: &Value) -> (u64, Vec<u8>) {
        let number = self.table.lock().map_or(0, |mut table| {
            table.0 += 1;
            table.0
        });
        let method = method.unwrap_or("sampling/createMessage");
        let mut request = json!({
            "jsonrpc": "2.0", "id": number, "method": method,
            "params": {"message": "which one?", "messages": [], "maxTokens": 10,
                "requestedSchema": {"type": "object", "properties": {}}},
        });
        if let (Some(request), Some(with)) = (request.as_object_mut(), with.as_object()) {
            request.extend(with.clone());
        }
        (number, request.to_string().into_bytes())
    }

    /// Stores the client's answer to a request.
    pub(crate) fn answered(&self, id: &RawValue, outcome: Option<&RawValue>) {
        if let (Ok(number), Ok(mut table)) = (id.get().parse(), self.table.lock()) {
            table.1.insert(number, outcome.map_or("null", RawValue::get).to_owned());
            self.came.notify_all();
        }
    }

    /// Waits for the answer to request `number` and puts it into `answer`.
    pub(crate) fn fill(&self, number: u64, answer: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(answer);
        let Ok(table) = self.table.lock() else { return answer.to_vec() };
        let waited =
            self.came.wait_timeout_while(table, PATIENCE, |table| !table.1.contains_key(&number));
        let outcome = waited.ok().and_then(|(mut table, _)| table.1.remove(&number));
        text.replace(WORD, outcome.as_deref().unwrap_or(WORD)).into_bytes()
    }
}

/// The result of `needs_input`: first a request for input, then on the retry the received input.
pub(crate) fn input_required(state: Option<&RawValue>, inputs: Option<&RawValue>) -> String {
    let value = |raw: Option<&RawValue>| {
        raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok()).unwrap_or_default()
    };
    match state {
        None => r#"{"inputRequests":{"who":{"method":"elicitation/create","params":{"mode":"form","message":"Who?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"opaque \u00e9","resultType":"input_required"}"#.to_owned(),
        Some(_) => {
            let seen = json!({"state": value(state), "inputs": value(inputs)});
            json!({"content": [], "structuredContent": seen, "resultType": "complete"}).to_string()
        }
    }
}

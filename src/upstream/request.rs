//! A request as bytes: our envelope around the agent's own arguments.
//!
//! Pure. Large arguments go out as the slice they came in; nothing of them is read.

use std::io::Write;

use bytes::Bytes;

use crate::wire::lines::one_line;

/// Arguments up to this size are copied into one buffer with the envelope: one write of one slice
/// costs less than three slices do.
const COPY_BYTES: usize = 4096;

/// A request's parameters, as slices.
pub(super) struct Params<'a> {
    pub(super) method: &'static str,
    /// The tool's name, for a call.
    pub(super) name: Option<&'a str>,
    pub(super) meta: Option<Bytes>,
    /// The raw arguments of a call; for other methods the raw params object.
    pub(super) arguments: Bytes,
}

impl Params<'_> {
    /// The message as a request's body.
    pub(super) fn body(&self, id: u64) -> [Bytes; 3] {
        self.slices(id, self.arguments.clone(), "")
    }

    /// The message as a line.
    pub(super) fn line(&self, id: u64) -> [Bytes; 3] {
        self.slices(id, one_line(self.arguments.clone()), "\n")
    }

    fn slices(&self, id: u64, arguments: Bytes, end: &'static str) -> [Bytes; 3] {
        let meta = self.meta.as_deref().unwrap_or_default();
        let small = arguments.len() <= COPY_BYTES;
        let room = 128 + meta.len() + self.name.map_or(0, str::len);
        let mut head = Vec::with_capacity(room + if small { arguments.len() } else { 0 });
        let method = self.method;
        // Writing into a Vec cannot fail.
        let _ = write!(head, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
        let close = if let Some(name) = self.name {
            head.push(b'{');
            if !meta.is_empty() {
                head.extend_from_slice(br#""_meta":"#);
                head.extend_from_slice(meta);
                head.push(b',');
            }
            head.extend_from_slice(br#""name":"#);
            push_json_string(&mut head, name);
            head.extend_from_slice(br#","arguments":"#);
            "}}"
        } else {
            "}"
        };
        let tail = match (close, end) {
            ("}}", "") => "}}",
            ("}}", _) => "}}\n",
            (_, "") => "}",
            (_, _) => "}\n",
        };
        if small {
            head.extend_from_slice(&arguments);
            head.extend_from_slice(tail.as_bytes());
            return [Bytes::from(head), Bytes::new(), Bytes::new()];
        }
        [Bytes::from(head), arguments, Bytes::from_static(tail.as_bytes())]
    }
}

fn push_json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                out.push(b'\\');
                out.push(char as u8);
            }
            char if char < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(slices: &[Bytes; 3]) -> String {
        String::from_utf8(slices.concat()).unwrap()
    }

    #[test]
    fn the_arguments_go_out_byte_for_byte() {
        let params = Params {
            method: "tools/call",
            name: Some("a\"b\n"),
            meta: None,
            arguments: Bytes::from_static(b"{ \"n\":\n1.0e5 }"),
        };
        assert_eq!(
            text(&params.slices(7, params.arguments.clone(), "")),
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":\
             {\"name\":\"a\\\"b\\u000a\",\"arguments\":{ \"n\":\n1.0e5 }}}"
        );
        let line = text(&params.line(7));
        assert!(line.ends_with("{ \"n\": 1.0e5 }}}\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn large_arguments_are_not_copied() {
        let arguments = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(COPY_BYTES)));
        let params = Params {
            method: "tools/call",
            name: Some("t"),
            meta: Some(Bytes::from_static(b"{\"k\":1}")),
            arguments: arguments.clone(),
        };
        for slices in [params.slices(1, arguments.clone(), ""), params.line(1)] {
            assert_eq!(slices[1].as_ptr(), arguments.as_ptr());
            let value: serde_json::Value = serde_json::from_slice(&slices.concat()).unwrap();
            assert_eq!(value["params"]["_meta"]["k"], 1);
        }
    }

    #[test]
    fn other_methods_carry_their_params_as_they_are() {
        let params = Params {
            method: "tools/list",
            name: None,
            meta: None,
            arguments: Bytes::from_static(b"{\"cursor\":\"x\"}"),
        };
        assert_eq!(
            text(&params.line(3)),
            "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}\n"
        );
    }
}

//! Propagation of W3C Baggage to the server, and of trace headers that a client sends twice.

use serde_json::{Value, json};

use crate::harness::Proxy;
use crate::tracing::{PARENT, call, calls, collector, server, telemetry, url};

const MAX_BYTES: usize = 8192;

#[test]
fn sep_414_baggage_is_forwarded_in_meta_and_headers() {
    let (collector, server) = (collector(), server());
    let telemetry = telemetry(&collector);
    let proxy = Proxy::with(json!({"mcpServers": {"s": url(&server)}, "telemetry": telemetry}));
    let mut client = proxy.client();
    let most = format!("k={}", "v".repeat(MAX_BYTES - 2));
    let over = format!("{most}v");
    let in_head = |baggage| [("traceparent", PARENT), ("baggage", baggage)];
    for (meta, headers, expected) in [
        (json!({"traceparent": PARENT, "baggage": "a=1;p,b=2"}), vec![], Some("a=1;p,b=2")),
        // Without a trace of the client, the proxy starts one.
        (json!({"baggage": "a=1"}), vec![], Some("a=1")),
        (Value::Null, in_head("h=1").to_vec(), Some("h=1")),
        (json!({"traceparent": PARENT, "baggage": "m=1"}), in_head("h=1").to_vec(), Some("m=1")),
        (json!({"traceparent": PARENT, "baggage": most}), vec![], Some(&*most)),
        (json!({"traceparent": PARENT, "baggage": over}), vec![], None),
        (json!({"traceparent": PARENT, "baggage": "a=1\r\nx-evil: 1"}), vec![], None),
        (json!({"traceparent": PARENT, "baggage": 7}), vec![], None),
    ] {
        call(&mut client, meta.clone(), &headers);
        let (request, sent) = calls(&server).pop().unwrap();
        let sent = sent.get("baggage").map(|it| it.as_str().unwrap().to_owned());
        assert_eq!(sent.as_deref(), expected, "{:.80}", meta.to_string());
        assert_eq!(request.headers("baggage"), expected.into_iter().collect::<Vec<_>>());
        assert_eq!(request.headers("traceparent").len(), 1);
        assert!(request.headers("x-evil").is_empty());
    }
}

#[test]
fn server_receives_one_traceparent_of_the_proxy_out_of_two() {
    let (collector, server) = (collector(), server());
    let telemetry = telemetry(&collector);
    let proxy = Proxy::with(json!({"mcpServers": {"s": url(&server)}, "telemetry": telemetry}));
    let twice = [("traceparent", PARENT), ("traceparent", PARENT), ("tracestate", "a=1")];
    call(&mut proxy.client(), Value::Null, &twice);
    let (request, meta) = calls(&server).pop().unwrap();
    let [parent] = request.headers("traceparent")[..] else { panic!("{request:?}") };
    assert_eq!(meta["traceparent"], parent);
    assert_ne!(parent.get(..35), PARENT.get(..35), "it is unknown which of the two was meant");
    assert!(request.headers("tracestate").is_empty());
}

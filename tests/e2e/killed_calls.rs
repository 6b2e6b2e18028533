//! A proxy killed during a call: the call is recorded afterwards (ACT-1).

use serde_json::{Value, json};

use crate::harness::{Proxy, stub_stdio, until};

#[test]
fn act_1_call_in_flight_at_a_kill_is_recorded_as_unknown() {
    for durability in ["grouped", "before_send"] {
        let config = json!({
            "mcpServers": {"s": stub_stdio(&[])},
            "activity": {"durability": durability},
        });
        let mut proxy = Proxy::with(config.clone());
        let mut client = proxy.client();
        let session = client.session.clone();
        client.begin("write", "s:never", json!({"n": 1}));
        // The call has reached the server once the server counts more calls than this test has made otherwise.
        let (mut other, mut asked) = (proxy.client(), 0);
        until("the call is under way", || {
            asked += 1;
            let stats = other.read("s:stats", json!({}));
            (stats["structuredContent"]["calls"].as_u64()? > asked).then_some(())
        });
        let mine = format!("session_id={session}");
        if durability == "grouped" {
            // A query makes the log write all earlier records.
            assert_eq!(proxy.activity(&mine), [] as [Value; 0]);
        }
        proxy.process.0.kill().unwrap();
        proxy.process.0.wait().unwrap();

        let list = ["activity", "list", "--status", "unknown", "-o", "json"];
        let listed = proxy.cli(&list).json()["activities"].clone();
        let folder = std::mem::replace(&mut proxy.folder, tempfile::tempdir().unwrap());
        let again = Proxy::unready(config, folder);
        let records = again.activity(&format!("{mine}&type=tool_call"));
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!(listed, json!([record]), "a query before the next start returns the same");
        assert_eq!((&record["status"], &record["tool_name"]), (&json!("unknown"), &json!("never")));
        assert_eq!(record["arguments"], json!({"n": 1}));
        assert_eq!(record["intent"]["operation_type"], "write");
        assert_eq!(record["duration_ms"], 0.0);
        let decided = again.activity(&format!("{mine}&type=policy_decision"));
        assert_eq!(decided[0]["parent_id"], record["id"], "write on a tool that only reads");
        assert_eq!(again.activity("status=unknown").len(), 1);
        assert_eq!(again.api("activity/summary?period=1h")["unknown_count"], 1);
        assert_eq!(again.api("activity/verify")["sound"], true);
        let csv = again.get("/api/v1/activity/export?format=csv&status=unknown");
        assert_eq!(csv.text().lines().count(), 2, "{}", csv.text());
        let shown = again.cli(&["activity", "show", record["id"].as_str().unwrap()]).stdout;
        assert!(shown.contains("outcome not known"), "{shown}");
        again.assert_logged("calls were in flight");
    }
}

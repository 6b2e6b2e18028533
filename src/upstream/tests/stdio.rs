//! Calls to real child processes: scripted shells.

use super::*;

/// Main loop of the scripts: handles the lifecycle, first runs `$2` once, and then `$1` for each call with its id in
/// `$id`.
pub(super) const SERVER: &str = r#"
eval "$2"
while IFS= read -r line; do
  case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
  case "$line" in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
    *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{}}]}}\n' "$id";;
    *'"tools/call"'*) eval "$1";;
  esac
done
"#;

fn entry(on_call: &str, first: &str) -> serde_json::Value {
    json!({"command": "/bin/sh", "args": ["-c", SERVER, "server", on_call, first]})
}

fn child(on_call: &str) -> Bench {
    Bench::start(json!({"sh": entry(on_call, "")}))
}

#[tokio::test]
async fn call_is_answered_by_a_child() {
    let bench = child(
        r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"line":"%s"}}\n' "$id" "$(printf %s "$line" | tr -d '"\\')""#,
    );
    let state = bench.connected("sh").await;
    assert_eq!(state.server_info.as_deref(), Some("sh 1"));
    let mut answer = bench.begin("sh:t", "{\"a\":\r\n1}").await.unwrap();
    let id = answer.id();
    let message = next_message(&mut answer).await.unwrap().unwrap();
    assert_eq!(
        message,
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"line\":\"{{jsonrpc:2.0,id:{id},method:tools/call,params:{{name:t,arguments:{{a:  1}}}}}}\"}}}}"
        )
    );
    assert_eq!(next_message(&mut answer).await.unwrap(), None);
    bench.stop().await;
}

#[tokio::test]
async fn responses_find_their_calls_in_any_order() {
    // Two calls are answered in reverse order, with the id after the result.
    let bench = child(
        r#"if [ -n "$held" ]; then
             printf '{"result":{"n":"%s"},"id":%s}\n{"result":{"n":"%s"},"id":%s}\n' "$id" "$id" "$held" "$held"; held=;
           else held=$id; fi"#,
    );
    bench.connected("sh").await;
    for _ in 0..10 {
        let (mut one, mut two) =
            (bench.begin("sh:t", "{}").await.unwrap(), bench.begin("sh:t", "{}").await.unwrap());
        for answer in [&mut one, &mut two] {
            let id = answer.id();
            let message = next_message(answer).await.unwrap().unwrap();
            assert_eq!(message, format!("{{\"result\":{{\"n\":\"{id}\"}},\"id\":{id}}}"));
        }
    }
    bench.stop().await;
}

#[tokio::test]
async fn response_is_streamed_before_its_line_has_ended() {
    let bench = child(
        r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"a":' "$id"; IFS= read -r line; printf '1}}\n'"#,
    );
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let Some(AnswerPart::Data(head)) = within(answer.next()).await.unwrap() else { panic!() };
    assert!(head.ends_with(b"\"result\":{\"a\":"), "{head:?}");
    // The second call is the script's signal to continue.
    let second = bench.begin("sh:t", "{}").await.unwrap();
    let message = next_message(&mut answer).await.unwrap().unwrap();
    assert_eq!(message, "1}}");
    drop(second);
    bench.stop().await;
}

#[tokio::test]
async fn line_of_many_megabytes_arrives_completely() {
    let bench = child(
        r#"printf '{"result":{"x":"'; head -c 20000000 /dev/zero | tr '\0' x; printf '"},"id":%s}\n' "$id""#,
    );
    bench.connected("sh").await;
    let messages = bench.call("sh:t", "{}").await.unwrap();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].len() > 20_000_000);
    bench.stop().await;
}

#[tokio::test]
async fn call_of_a_child_that_exits_fails_and_the_child_is_restarted() {
    let bench = child(
        r#"printf '{"jsonrpc":"2.0","id":%s,"result":{' "$id"; echo 'out of luck' >&2; exit 3"#,
    );
    bench.connected("sh").await;
    let error = bench.error("sh:t").await;
    assert_eq!(
        error,
        "sh: t: the server closed the connection in the middle of its answer: it closed its output"
    );
    let state = bench.wait_until("sh", |state| state.status != Status::Connected).await;
    assert_eq!(
        &*state.reason,
        "reconnecting: the process ended with exit status: 3; last stderr line: out of luck"
    );
    bench.connected("sh").await;
    bench.stop().await;
}

#[tokio::test]
async fn child_that_fails_to_start_is_reported_with_the_reason() {
    let bench = Bench::start(json!({
        "missing": {"command": "/no/such/program"},
        "quitter": {"command": "/bin/sh", "args": ["-c", "echo 'no config' >&2; exit 7"]},
        "mute": {"command": "/bin/sh", "args": ["-c", "sleep 60"], "init_timeout": "100ms"},
        "printer": {"command": "/bin/sh", "args": ["-c", "echo Usage: printer FILE; echo more"]},
        "talker": {"command": "/bin/sh", "args": ["-c", "echo 'token s3cr3t-val'; sleep 60"],
            "init_timeout": "300ms", "env": {"TOKEN": "s3cr3t-value"}},
    }));
    let failed = |state: &ServerState| state.status == Status::Failed;
    let reason = bench.wait_until("missing", failed).await.reason;
    assert!(reason.starts_with("command /no/such/program cannot be started: "), "{reason}");
    assert_eq!(
        &*bench.wait_until("quitter", failed).await.reason,
        "the process ended with exit status: 7; last stderr line: no config"
    );
    assert_eq!(
        &*bench.wait_until("mute", failed).await.reason,
        "no answer to server/discover and initialize within 100ms"
    );
    // A program that is no MCP server usually says so on stdout. The end of a line may be part of a secret.
    let wrote = "; it wrote a line that is not a JSON-RPC message: ";
    assert_eq!(
        &*bench.wait_until("printer", failed).await.reason,
        format!("the process ended with exit status: 0{wrote}Usage: printer FILE")
    );
    assert_eq!(
        &*bench.wait_until("talker", failed).await.reason,
        format!("no answer to server/discover and initialize within 300ms{wrote}token [redacted]")
    );
    bench.stop().await;
}

#[tokio::test]
async fn garbage_and_foreign_ids_are_ignored() {
    let bench = child(
        r#"printf 'Listening...\n\n[]\n{"id":1999999999,"result":{}}\n{"id":"x","result":1}\n{"method":"notifications/x"}\n{"id":%s,"result":{}}\n' "$id""#,
    );
    bench.connected("sh").await;
    for _ in 0..3 {
        let mut answer = bench.begin("sh:t", "{}").await.unwrap();
        let expected = format!("{{\"id\":{},\"result\":{{}}}}", answer.id());
        assert_eq!(next_message(&mut answer).await.unwrap().unwrap(), expected);
    }
    bench.stop().await;
}

#[tokio::test]
async fn silence_and_garbage_have_different_errors() {
    let bench = Bench::start(json!({
        "quiet": {"command": "/bin/sh", "args": ["-c", SERVER, "s", ":", ""], "call_timeout": "100ms"},
        "noisy": {"command": "/bin/sh", "args": ["-c", SERVER, "s", "echo a; echo b", ""], "call_timeout": "300ms"},
    }));
    bench.connected("quiet").await;
    bench.connected("noisy").await;
    assert_eq!(bench.error("quiet:t").await, "quiet: t: no answer within 100ms");
    assert_eq!(
        bench.error("noisy:t").await,
        "noisy: t: the answer cannot be read: no answer within 300ms, but 2 lines that are not JSON-RPC messages"
    );
    bench.stop().await;
}

#[tokio::test]
async fn dropped_answer_is_canceled_and_its_late_bytes_are_discarded() {
    // The first response starts and continues only after the cancellation was read, which the second reports.
    let bench = child(
        r#"if [ -z "$first" ]; then first=$id; printf '{"id":%s,"result":' "$first"; IFS= read -r cancel; printf '"late"}\n';
           else printf '{"id":%s,"result":"%s"}\n' "$id" "$(printf %s "$cancel" | tr -d '"\\')"; fi"#,
    );
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let first = answer.id();
    assert!(matches!(within(answer.next()).await, Ok(Some(AnswerPart::Data(_)))));
    drop(answer);
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    let message = next_message(&mut answer).await.unwrap().unwrap();
    assert!(
        message.contains(&format!("method:notifications/cancelled,params:{{requestId:{first},")),
        "{message}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn pro_26_byte_order_mark_before_a_line_is_skipped() {
    let bench = child(r#"printf '\357\273\277{"id":%s,"result":{"content":[]}}\n' "$id""#);
    bench.connected("sh").await;
    for _ in 0..2 {
        let messages = bench.call("sh:t", "{}").await.unwrap();
        assert!(messages[0].starts_with("{\"id\":"), "{messages:?}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn pro_22_answer_under_an_id_in_another_spelling_is_accepted() {
    let bench = child(r#"printf '{"id":"%s","result":{}}\n' "$id""#);
    bench.connected("sh").await;
    assert!(bench.call("sh:t", "{}").await.unwrap()[0].contains("\"result\""));
    bench.stop().await;
}

#[tokio::test]
async fn stderr_flood_does_not_block_calls() {
    let bench = child(
        r#"head -c 5000000 /dev/zero | tr '\0' e >&2; printf '{"id":%s,"result":{}}\n' "$id""#,
    );
    bench.connected("sh").await;
    for _ in 0..3 {
        assert!(bench.call("sh:t", "{}").await.is_ok());
    }
    bench.stop().await;
}

#[tokio::test]
async fn child_that_does_not_read_times_out() {
    let bench = Bench::start(json!({"sh": {
        "command": "/bin/sh", "args": ["-c", SERVER, "s", "sleep 60", ""], "call_timeout": "100ms"
    }}));
    bench.connected("sh").await;
    let large = format!("{{\"x\":\"{}\"}}", "y".repeat(200_000));
    let mut errors = Vec::new();
    for _ in 0..3 {
        errors.push(bench.call("sh:t", &large).await.unwrap_err().to_string());
    }
    assert!(errors.iter().all(|it| it == "sh: t: no answer within 100ms"), "{errors:?}");
    bench.stop().await;
}

#[tokio::test]
async fn child_that_closes_its_input_is_restarted() {
    let mut entry = entry(r#"printf '{"id":%s,"result":{}}\n' "$id"; exec <&-; sleep 60"#, "");
    entry["call_timeout"] = "200ms".into();
    let bench = Bench::start(json!({"sh": entry}));
    bench.connected("sh").await;
    assert!(bench.call("sh:t", "{}").await.is_ok());
    within(async {
        // Eventually a call is written into a closed pipe; then the child is replaced.
        while bench.upstream("sh").state().status == Status::Connected {
            let _ = bench.call("sh:t", "{}").await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    bench.connected("sh").await;
    bench.stop().await;
}

#[tokio::test]
async fn child_and_its_descendants_are_gone_after_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // The child and its own child ignore the end of input and SIGTERM.
    let bench = Bench::start(json!({"sh": {
        "command": "/bin/sh",
        "args": ["-c", format!("trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $! $$ > \"$PIDS\"; {SERVER} while :; do sleep 1; done"), "s", ":", ""],
        "env": {"PIDS": pids.to_str().unwrap()},
    }}));
    bench.connected("sh").await;
    let pids: Vec<i32> = std::fs::read_to_string(&pids)
        .unwrap()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    let [grandchild, child] = pids[..] else { panic!() };
    let alive = |pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok();
    assert!(alive(child) && alive(grandchild));
    bench.stop().await;
    assert!(!alive(child), "the child is still alive");
    // Orphans are reaped by their new parent, which may take a moment.
    within(async {
        while alive(grandchild) && !is_zombie(grandchild) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn is_zombie(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_cut_off_by_shutdown_fail_with_the_reason() {
    let mute = entry(":", "");
    let bench = Bench::start(json!({"goes": mute, "stays": mute}));
    let mut answers = Vec::new();
    for name in ["goes", "stays"] {
        bench.connected(name).await;
        answers.push(bench.begin(&format!("{name}:t"), "{}").await.unwrap());
    }
    let plan = vec![(Arc::from("stays"), ServerPlan::Stays(PATIENCE))];
    assert_eq!(within(bench.supervisor.replace(plan)).await.retired.len(), 1);
    assert_eq!(bench.supervisor.retiring(), 1, "it drains its call");
    within(bench.supervisor.shutdown(Instant::now() + Duration::from_secs(1))).await;
    for mut answer in answers {
        let error = next_message(&mut answer).await.unwrap_err().to_string();
        assert!(error.ends_with("without an answer: mcpproxy is shutting down"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_outlasts_a_replaced_server_fails_with_the_reason() {
    let mut mute = entry(":", "");
    let bench = Bench::start(json!({"sh": mute}));
    bench.connected("sh").await;
    let mut answer = bench.begin("sh:t", "{}").await.unwrap();
    bench.upstream("sh").call_timeout.set(Duration::from_millis(1));
    mute["call_timeout"] = "60s".into();
    let config: Config = serde_json::from_value(mute).unwrap();
    let plan = vec![(Arc::from("sh"), ServerPlan::Starts(config.into()))];
    within(bench.supervisor.replace(plan)).await;
    let error = next_message(&mut answer).await.unwrap_err().to_string();
    assert!(error.contains("TLS files") && error.ends_with("call_timeout"), "{error}");
    bench.stop().await;
}

#[tokio::test]
async fn exit_during_many_calls_fails_all_of_them() {
    let bench = child(r#"n=$((n+1)); [ $n -lt 5 ] || exit 0"#);
    bench.connected("sh").await;
    let calls = (0..5).map(|_| bench.call("sh:t", "{}"));
    for outcome in futures_util::future::join_all(calls).await {
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "sh: t: the server closed the connection without an answer: it closed its output"
        );
    }
    bench.stop().await;
}

#[tokio::test]
async fn list_changed_is_followed() {
    let bench = Bench::start(json!({"sh": {"command": "/bin/sh", "args": ["-c", r#"
        n=1
        while IFS= read -r line; do
          case "$line" in *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*};; esac
          case "$line" in
            *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id";;
            *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"?"}}\n' "$id";;
            *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t%s","inputSchema":{}}]}}\n' "$id" "$n"; n=$((n+1))
              [ $n -gt 3 ] || printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n';;
          esac
        done"#]}}));
    bench.connected("sh").await;
    let third = ToolName::parse("sh:t3").unwrap();
    bench.wait_until("sh", |_| bench.catalog.load().tool(&third).is_some()).await;
    bench.stop().await;
}

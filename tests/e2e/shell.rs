//! The command line for people: table widths, reasons in rows, short ids, colors, suggestions, shell completion, and the
//! schema for editors.

use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;
use unicode_width::UnicodeWidthStr as _;

use crate::harness::{
    CertificateAuthority, Output, Proxy, configure, error_text, free_port, mcpproxy, stub_stdio,
    until,
};

const LONG: &str = "a-server-with-a-rather-long-name";

fn proxy() -> &'static Proxy {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    PROXY.get_or_init(|| {
        let gone = json!({"command": "/nowhere/to/be/found"});
        let servers =
            json!({"s": stub_stdio(&[]), LONG: stub_stdio(&["--only", "read_item"]), "gone": gone});
        let proxy = Proxy::for_all(json!({"mcpServers": servers}));
        let mut client = proxy.client();
        client.call("read", "s:read_item", json!({}));
        client.call("destructive", "s:delete_item", json!({"path": "/a"}));
        client.call("read", &format!("{LONG}:read_item"), json!({}));
        client.call("read", "s:delete_item", json!({}));
        // The answer of this tool violates its schema, which causes a warning.
        client.call("read", "s:violate", json!({}));
        proxy
    })
}

fn cli(args: &[&str]) -> Output {
    proxy().cli(args)
}

fn wide(columns: usize, args: &[&str]) -> Output {
    Output::of(proxy().command(args).env("COLUMNS", columns.to_string()))
}

/// Output of a command, stdout and stderr, at a terminal with this number of columns.
fn at_terminal(columns: usize, variables: &[(&str, &str)], args: &[&str]) -> String {
    in_terminal(&proxy().command(args), columns, variables)
}

fn in_terminal(inner: &Command, columns: usize, variables: &[(&str, &str)]) -> String {
    // The number of rows is set as well; otherwise the size of the terminal would count as unknown.
    let mut words = vec![format!("stty rows 24 cols {columns};")];
    words.push(format!("{:?}", inner.get_program()));
    words.extend(inner.get_args().map(|arg| format!("{arg:?}")));
    let mut command = Command::new("script");
    command.args(["-qec", &words.join(" "), "/dev/null"]).env("TERM", "xterm");
    // Variables that control colors and the width.
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "COLUMNS"] {
        command.env_remove(variable);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(variables.iter().copied());
    let output = Output::of(&mut command);
    assert_eq!(output.code, Some(0), "{inner:?}: {}{}", output.stdout, output.stderr);
    output.stdout.replace('\r', "")
}

/// Id in a row: its first word. Ids may be preceded by spaces, because numbers are right-aligned.
fn first_word(row: &str) -> &str {
    row.split_whitespace().next().unwrap()
}

#[test]
fn table_is_never_wider_than_the_terminal() {
    let list = |columns| at_terminal(columns, &[("NO_COLOR", "1")], &["activity", "list"]);
    for columns in [80, 200] {
        let shown = list(columns);
        shown.lines().for_each(|row| assert!(row.width() <= columns, "{columns}: {row}"));
    }
    let header = |columns| list(columns).lines().next().unwrap().to_owned();
    assert!(header(200).contains("TYPE"), "{}", header(200));
    // Long names of servers, tools and principals are shortened, and displace no column.
    let names: Vec<String> = header(80).split_whitespace().map(str::to_owned).collect();
    assert_eq!(names, ["ID", "AGE", "TOOL", "INTENT", "STATUS", "PRINCIPAL"]);
    assert!(list(80).contains("(no room for DURATION: -o json has all)"), "{}", list(80));
    let refused = ["activity", "list", "--tool", "delete_item", "--status", "rejected"];
    let refused = at_terminal(80, &[("NO_COLOR", "1")], &refused);
    let rows: Vec<&str> = refused.lines().collect();
    assert!(rows[1].contains(" s:delete_item "), "{refused}");
    assert_eq!(rows[2], "    the tool is marked destructive by server, use call_tool_destructive");
}

#[test]
fn single_screens_fit_80_columns() {
    for args in
        [&["status"][..], &["doctor"], &["activity", "summary"], &["activity", "show", "last"]]
    {
        let shown = wide(80, args).stdout;
        assert!(shown.lines().count() > 3, "{args:?}: {shown}");
        shown.lines().for_each(|row| assert!(row.width() <= 80, "{args:?}: {row}"));
    }
}

#[test]
fn command_that_starts_the_servers_reports_how_many_have_answered() {
    let folder = tempfile::tempdir().unwrap();
    // Silent servers delay the command until their timeout.
    let silent = json!({"command": "sleep", "args": ["60"], "init_timeout": "4s"});
    let servers = json!({"a": stub_stdio(&[]), "b": stub_stdio(&[]), "c": silent, "d": silent,
        "e": silent});
    let listen = format!("127.0.0.1:{}", free_port());
    let path = configure(json!({"listen": listen, "mcpServers": servers}), folder.path());
    let mut command = mcpproxy();
    command.arg("-c").arg(&path).arg("doctor");
    // The command fails because of the silent servers, so its exit code is ignored.
    let script =
        format!("{} -c {} doctor || true", command.get_program().display(), path.display());
    let mut shell = Command::new("sh");
    let seen = in_terminal(shell.arg("-c").arg(script), 100, &[]);
    assert!(seen.contains("trying servers: 2 of 5 ready"), "{seen}");
    let piped = Output::of(&mut command);
    assert_eq!(piped.code, Some(1), "{}", piped.stderr);
    assert!(!piped.stderr.contains("trying servers"), "{}", piped.stderr);
}

// CLI-2
#[test]
fn tables_fit_80_100_and_200_columns_without_breaking_words() {
    let tables: [&[&str]; 5] = [
        &["activity", "list"],
        &["upstream", "list"],
        &["tools", "list"],
        &["tools", "search", "item"],
        &["token", "list"],
    ];
    assert_eq!(cli(&["token", "create", "a-token-of-this-test", "--server", "s"]).code, Some(0));
    for table in tables {
        let whole = cli(table).stdout;
        let words: Vec<&str> = whole.split_whitespace().collect();
        for columns in [80, 100, 200] {
            let output = wide(columns, table);
            assert_eq!(output.code, Some(0), "{}", output.stderr);
            let rows: Vec<&str> = output.stdout.lines().collect();
            for row in &rows {
                assert!(row.width() <= columns, "{columns}: {row}");
            }
            // Names in tables of tools are not shortened. Other tables are not checked, because other tests change
            // their content meanwhile.
            let is_stable = matches!(table, ["tools", ..]);
            let names = rows.iter().skip(1).filter_map(|row| row.split_whitespace().next());
            for name in names.filter(|name| is_stable && name.contains(':')) {
                assert!(
                    words.contains(&name),
                    "{columns}: {name} in {table:?}:\n{}",
                    output.stdout
                );
            }
            // The last column may be shortened, and so may long values of other columns. In tables of records names may
            // be shortened in the middle.
            let is_cut = |row: &&&str| row.contains('…') && !row.contains("a-server-with");
            let cut = rows.iter().filter(is_cut).filter(|_| table[0] != "activity");
            cut.for_each(|row| assert!(row.ends_with('…'), "only the last column is cut: {row}"));
        }
    }
    let header =
        |columns| wide(columns, &["activity", "list"]).stdout.lines().next().unwrap().to_owned();
    let names = |columns| header(columns).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        names(200),
        ["ID", "TIME", "(UTC)", "TYPE", "TOOL", "INTENT", "STATUS", "DURATION", "PRINCIPAL",]
    );
    for name in ["ID", "TOOL", "STATUS", "PRINCIPAL"] {
        assert!(names(80).iter().any(|it| it == name), "{:?}", names(80));
    }
    assert!(names(80).len() < names(100).len() || names(100).len() < names(200).len());
}

#[test]
fn name_chosen_by_an_agent_cannot_hide_table_columns() {
    let server = "s".repeat(45);
    let proxy = Proxy::for_all(json!({"mcpServers": {&server: stub_stdio(&[])}}));
    let mut client = proxy.client();
    client.read(&format!("{server}:read_item"), json!({}));
    for letters in ["t", "\u{6f22}"] {
        client.read(&format!("{server}:{}", letters.repeat(120)), json!({}));
    }
    for columns in [80, 100, 120, 200] {
        let table = |args: &[&str]| {
            let output = Output::of(proxy.command(args).env("COLUMNS", columns.to_string()));
            let rows = output.stdout.lines();
            rows.for_each(|row| assert!(row.width() <= columns, "{columns}: {row}"));
            output.stdout
        };
        let list = table(&["activity", "list"]);
        let header = list.lines().next().unwrap();
        for name in ["ID", "TOOL", "STATUS"] {
            assert!(header.contains(name), "{columns}: {list}");
        }
        assert!(list.contains("not found"), "{columns}: {list}");
        assert!(list.contains("read_item") && list.contains("error"), "{list}");
        let upstream = table(&["upstream", "list"]);
        assert!(upstream.contains(&server) && upstream.contains("connected"), "{upstream}");
        assert!(table(&["tools", "list"]).contains("tool-destructive"));
    }
}

#[test]
fn pipe_gets_all_columns_and_whole_ids_and_an_invalid_width_changes_nothing() {
    // No other test makes such a call, so there is a single record.
    let list = ["activity", "list", "--tool", "delete_item", "--status", "success"];
    let plain = cli(&list);
    assert!(plain.stdout.starts_with("ID "), "{}", plain.stdout);
    let id = plain.stdout.lines().nth(1).and_then(|row| row.split(' ').next()).unwrap();
    assert_eq!(id.len(), 26, "{}", plain.stdout);
    for nonsense in ["0", "-1", "x", "99999999999999999999", ""] {
        let mut command = proxy().command(&list);
        assert_eq!(Output::of(command.env("COLUMNS", nonsense)).stdout, plain.stdout, "{nonsense}");
    }
}

#[test]
fn refusal_and_its_decision_are_one_row_and_a_number_or_last_shows_both() {
    let list = |columns| wide(columns, &["activity", "list", "--tool", "delete_item"]).stdout;
    let table = list(200);
    // The oldest row, because other tests cause refusals as well.
    let row =
        table.lines().rfind(|row| row.contains("rejected")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("marked destructive by server"), "the row has the reason: {row}");
    assert!(!table.contains("policy_decision"), "the decision has no separate row: {table}");
    let number = first_word(row);
    assert!(number.parse::<u64>().is_ok(), "{row}");
    let shown = cli(&["activity", "show", number]).stdout;
    for part in ["rejected", "decision", "rejected by intent (activity show", "marked destructive"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The decision is found by its type, and names the call.
    let decisions = wide(200, &["activity", "list", "--type", "policy_decision"]).stdout;
    let of_call = decisions.lines().rfind(|row| row.contains("delete_item")).expect("a decision");
    let decision = cli(&["activity", "show", first_word(of_call)]).stdout;
    assert!(decision.contains("decided on") && decision.contains(number), "{decision}");

    let all = cli(&["activity", "list", "--json", "-n", "1000"]).json();
    let records = all["activities"].as_array().unwrap();
    for record in [records.first(), records.get(records.len() / 2), records.last()] {
        let record = record.unwrap();
        let by_number = cli(&["activity", "show", &record["seq"].to_string(), "--json"]).json();
        assert_eq!(by_number["activity"]["id"], record["id"]);
    }
    let last = cli(&["activity", "show", "last", "--json"]);
    assert_eq!(last.code, Some(0), "{}", last.stderr);
    let none = cli(&["activity", "show", "99999999"]);
    let message = "error: no record 99999999, or no longer retained: `mcpproxy activity list` shows the numbers";
    assert_eq!((none.code, none.stderr.trim()), (Some(1), message));
}

#[test]
fn act_7_list_of_n_has_n_rows_even_if_decisions_are_folded() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    for round in 0..6 {
        let refused = client.read("s:delete_item", json!({"round": round}));
        assert_eq!(refused["isError"], true, "{refused}");
    }
    let table = proxy.cli(&["activity", "list", "-n", "4", "-o", "table"]).stdout;
    let rows = table.lines().filter(|row| row.starts_with(|first: char| first.is_ascii_digit()));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(rows.iter().all(|row| row.contains("delete_item")), "{table}");
}

#[test]
fn every_row_states_its_reason_and_outcome() {
    let list = |args: &[&str]| wide(300, &[&["activity", "list"], args].concat()).stdout;
    let row = |table: &str, part: &str| {
        let found = table.lines().find(|row| row.contains(part)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{part}: {table}"))
    };
    // A warning of an admitted call is shown in its row.
    let warned = list(&["--tool", "violate"]);
    let of_call = row(&warned, "tool_call");
    assert!(of_call.contains("success") && of_call.contains("warning: at '/value'"), "{warned}");
    // The warning is also shown in the row of its decision.
    let decisions = list(&["--type", "policy_decision"]);
    assert!(row(&decisions, "violate").contains("at '/value'"), "{decisions}");
    assert!(row(&decisions, "delete_item").contains("marked destructive"), "{decisions}");
    let number = row(&decisions, "violate");
    let shown = cli(&["activity", "show", first_word(&number)]).stdout;
    assert!(shown.contains("output_validation"), "{shown}");
    let call = cli(&["activity", "show", first_word(&of_call)]).stdout;
    assert!(call.contains("warning by output_validation: "), "{call}");
    // The rows of records other than calls describe the event.
    let changes = list(&["--type", "server_change"]);
    assert!(row(&changes, "  s  ").contains("connected, "), "{changes}");
    assert!(row(&changes, "failed: ").contains("  gone  "), "{changes}");
    let tools = list(&["--type", "catalog_change"]);
    // A long reason is below its row.
    let rows: Vec<_> = tools.lines().collect();
    let added = rows.windows(2).find(|rows| rows[1].starts_with("    added: "));
    assert!(added.is_some_and(|rows| rows[0].contains("  s  ")), "{tools}");
    assert_eq!(cli(&["token", "create", "a-token-that-is-told-of"]).code, Some(0));
    let config = list(&["--type", "config_change"]);
    assert!(config.contains("token created 'a-token-that-is-told-of'"), "{config}");
}

#[test]
fn lost_server_and_changed_config_are_reported_in_their_rows() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&[])}));
    let mut client = proxy.client();
    client.read("s:crash", json!({}));
    let list = |kind: &str| {
        let mut command = proxy.command(&["activity", "list", "--type", kind]);
        Output::of(command.env("COLUMNS", "200")).stdout
    };
    until("the loss is reported", || {
        list("server_change").contains("lost, reconnecting: ").then_some(())
    });
    let disabled = proxy.cli(&["upstream", "disable", "s"]);
    assert_eq!(disabled.code, Some(0), "{}", disabled.stderr);
    let config = list("config_change");
    assert!(config.contains("changed: mcpServers.s"), "{config}");
}

#[test]
fn times_are_ages_at_a_terminal_and_name_their_zone_elsewhere() {
    let header = |args: &[&str]| {
        let args = [&["activity", "list"], args].concat();
        cli(&args).stdout.lines().next().unwrap().to_owned()
    };
    assert!(header(&[]).contains("TIME (UTC)"));
    assert!(header(&["--time", "relative"]).contains("AGE"));
    let mut command = proxy().command(&["activity", "list", "--time", "local"]);
    let local = Output::of(command.env("TZ", "Asia/Kolkata")).stdout;
    assert!(local.lines().next().unwrap().contains("TIME (Asia/Kolkata)"), "{local}");
    let terminal = at_terminal(120, &[], &["activity", "list"]);
    assert!(terminal.lines().next().unwrap().contains("AGE"), "{terminal}");
    // The same for a single record; all its times are in one zone.
    let show = |how: &str| {
        let mut command = proxy().command(&["activity", "show", "1", "--time", how]);
        Output::of(command.env("TZ", "Asia/Kolkata")).stdout
    };
    for (how, ends) in [("utc", "Z"), ("local", "+05:30"), ("relative", " ago")] {
        let shown = show(how);
        let times =
            shown.lines().filter(|it| it.starts_with("began ") || it.starts_with("stored "));
        let times: Vec<_> = times.collect();
        assert!(times.len() == 2 && times.iter().all(|it| it.ends_with(ends)), "{how}: {shown}");
    }
}

#[test]
fn colors_are_used_only_at_terminals() {
    let list = ["activity", "list", "--tool", "delete_item"];
    let red = "\u{1b}[31mrejected\u{1b}[0m";
    assert!(!cli(&list).stdout.contains('\u{1b}'), "none in a pipe");
    let with = |when: &str| cli(&[&["--color", when][..], &list].concat()).stdout;
    assert!(with("always").contains(red), "{}", with("always"));
    assert!(!with("never").contains('\u{1b}') && !with("auto").contains('\u{1b}'));
    assert!(
        !cli(&["--color", "always", "-o", "json", "activity", "list"]).stdout.contains('\u{1b}')
    );
    assert_eq!(cli(&["--color", "sometimes", "activity", "list"]).code, Some(2));
    assert!(at_terminal(120, &[], &list).contains(red));
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert!(!at_terminal(120, &[variable], &list).contains("\u{1b}[31m"), "{variable:?}");
    }
    assert!(
        at_terminal(120, &[("NO_COLOR", "1")], &[&["--color", "always"][..], &list].concat())
            .contains(red)
    );
}

#[test]
fn log_and_help_are_styled_only_if_colors_are_wanted() {
    let is_styled = |variables: &[(&str, &str)], args: &[&str]| {
        let inner = proxy().command(&[args, &["stdio"][..]].concat());
        let mut words = vec![format!("{:?}", inner.get_program())];
        words.extend(inner.get_args().map(|arg| format!("{arg:?}")));
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{} < /dev/null", words.join(" ")));
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let log = in_terminal(&shell, 200, variables);
        assert!(log.contains("forwarding to the running proxy"), "{log}");
        let help = at_terminal(100, variables, &[args, &["--help"][..]].concat());
        assert!(help.contains("Usage:"), "{help}");
        let styled = [log, help].map(|shown| shown.contains('\u{1b}'));
        assert_eq!(styled[0], styled[1], "{variables:?} {args:?}");
        styled[0]
    };
    assert!(is_styled(&[], &[]));
    assert!(is_styled(&[("NO_COLOR", "1")], &["--color", "always"]));
    assert!(!is_styled(&[("NO_COLOR", "1")], &[]));
    assert!(!is_styled(&[("TERM", "dumb")], &[]));
    assert!(!is_styled(&[], &["--color", "never"]));
}

#[test]
fn cli_2_hidden_characters_are_escaped_in_json_and_yaml_only_at_a_terminal() {
    let proxy = Proxy::start(json!({"s": stub_stdio(&["--only", "echo"])}));
    let hidden = "a\u{202e}b\u{200b}";
    proxy.client().read("s:echo", json!({"text": hidden}));
    let id = proxy.activity("type=tool_call")[0]["id"].as_str().unwrap().to_owned();
    for format in ["json", "yaml"] {
        let command = proxy.command(&["-o", format, "activity", "show", &id]);
        let shown = in_terminal(&command, 200, &[]);
        assert!(shown.contains(r"a\u202eb\u200b"), "{format}: {shown:?}");
        assert!(!shown.contains(['\u{202e}', '\u{200b}']), "{format}: {shown:?}");
        let piped = proxy.cli(&["-o", format, "activity", "show", &id]).stdout;
        assert!(piped.contains(hidden), "{format}: {piped:?}");
    }
}

#[test]
fn slow_call_reports_progress_only_at_a_terminal() {
    let call = ["call", "tool-read", "s:read_item", "--args", "{\"wait_ms\":900}"];
    let piped = cli(&call);
    assert_eq!((piped.code, &*piped.stderr), (Some(0), ""));
    let seen =
        at_terminal(100, &[], &["call", "tool-read", "s:read_item", "--args", "{\"wait_ms\":900}"]);
    assert!(seen.contains("calling s:read_item"), "{seen}");
}

#[test]
fn unknown_input_is_answered_with_suggestions_that_a_shell_accepts() {
    for (args, meant) in [
        (&["call", "tool-read", "s:raed_item"][..], "did you mean s:read_item?"),
        (&["call", "tool-read", "t:delete_item"], "did you mean s:delete_item?"),
        (&["call", "tool-read", "delete_item"], "did you mean s:delete_item?"),
        (&["tools", "show", "s:delet_item"], "did you mean s:delete_item?"),
        (&["tools", "diff", "s:delet_item"], "did you mean s:delete_item?"),
        (&["tools", "list", "--server", "gon"], "did you mean gone?"),
        (&["upstream", "restart", "gon"], "did you mean gone?"),
        (&["upstream", "disable", "gon"], "did you mean gone?"),
        (&["upstream", "logs", "gon"], "did you mean gone?"),
        (&["upstream", "login", "gon"], "did you mean gone?"),
        (&["upstream", "logout", "gon"], "did you mean gone?"),
        (&["activity", "show", "lastt"], "did you mean last?"),
        (&["token", "revoke", "a-token-of-that-test"], "did you mean a-token-of-"),
        (
            &["policy", "explain", "--as", "admin", "--tool", "s:delet_item"],
            "did you mean s:delete_item?",
        ),
        (&["call", "tool-read", "s:zzzzzz"], "`mcpproxy tools list`"),
        (&["call", "tool-read", "s:delete_item"], "(here: mcpproxy call tool-destructive)"),
    ] {
        if args[0] == "token" {
            let _ = cli(&["token", "create", "a-token-of-other-test"]);
        }
        let output = cli(args);
        assert_ne!(output.code, Some(0), "{args:?}");
        assert!(output.stderr.contains(meant), "{args:?}: {}", output.stderr);
        assert!(!output.stderr.contains("retrieve_tools"), "{args:?}: {}", output.stderr);
        assert_eq!(output.stderr.trim_end().lines().count(), 1, "{args:?}: {}", output.stderr);
    }
    // Hidden commands are not suggested.
    let tip = cli(&["upstrem", "list"]);
    assert!(tip.stderr.contains("'upstream'") && !tip.stderr.contains("demo-"), "{}", tip.stderr);
    // The suggestion that an agent gets names a tool of the proxy, not a command.
    let mut client = proxy().client();
    let answer = client.call("read", "s:zzzzzz", json!({}));
    assert_eq!(error_text(&answer), "Tool 's:zzzzzz' not found. Use retrieve_tools to find tools.");
    let Output { stdout: list, stderr, .. } = cli(&["tools", "list"]);
    assert!(list.contains("tool-destructive") && !list.contains("call_tool"), "{list}");
    // Tools that are missing are explained.
    assert!(stderr.contains("no tools of server 'gone', whose state is failed"), "{stderr}");
    assert!(!stderr.contains("server 's'"), "{stderr}");
}

/// Completions by bash for a line, with the script that the program prints.
fn completed(config: &str, line: &str) -> Vec<String> {
    let program = mcpproxy().get_program().to_owned();
    let folder = std::path::Path::new(&program).parent().unwrap().display().to_string();
    // Like readline: splits the line at COMP_WORDBREAKS, and passes the word that is to be replaced.
    let harness = r#"
        source <(mcpproxy completions bash)
        COMP_LINE=$1; COMP_POINT=${#COMP_LINE}
        COMP_WORDS=(); word=
        for ((i = 0; i < ${#COMP_LINE}; i++)); do
            letter=${COMP_LINE:i:1}
            case $letter in
                ' ') [[ -n $word ]] && COMP_WORDS+=("$word"); word=;;
                [:=]) [[ -n $word ]] && COMP_WORDS+=("$word"); COMP_WORDS+=("$letter"); word=;;
                *) word+=$letter;;
            esac
        done
        [[ -n $word || ${COMP_LINE: -1} == ' ' ]] && COMP_WORDS+=("$word")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _mcpproxy mcpproxy "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", harness, "bash", line]).env_clear();
    command.env("PATH", format!("{folder}:/usr/bin:/bin")).env("MCPPROXY_CONFIG", config);
    let output = Output::of(&mut command);
    assert_eq!(output.stderr, "", "{line}");
    output.stdout.lines().filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_servers_and_tools_of_the_running_proxy() {
    let proxy = proxy();
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(proxy.folder.path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["listen"] = json!(format!("127.0.0.1:{}", proxy.port));
    let path = configure(config, folder.path()).display().to_string();
    for (line, expected) in [
        ("mcpproxy upstream restart go", vec!["gone"]),
        ("mcpproxy call tool-read s:read_it", vec!["read_item"]),
        ("mcpproxy call tool-read --tool-name=s:delete_it", vec!["delete_item"]),
        ("mcpproxy tools show a-serv", vec!["a-server-with-a-rather-long-name:read_item"]),
        ("mcpproxy activity list --server go", vec!["gone"]),
        ("mcpproxy upst", vec!["upstream"]),
        ("mcpproxy call tool-read s:no-such", vec![]),
    ] {
        assert_eq!(completed(&path, line), expected, "{line}");
    }
    let all = completed(&path, "mcpproxy upstream restart ");
    assert!([LONG, "gone", "s"].iter().all(|name| all.iter().any(|it| it == name)), "{all:?}");
    assert!(completed(&path, "mcpproxy call tool-read s:").contains(&"delete_item".to_owned()));
    assert!(completed(&path, "mcpproxy activity list --").contains(&"--since".to_owned()));
}

#[test]
fn bash_completes_from_disk_without_a_proxy_and_omits_text_that_a_shell_would_run() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools.json");
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    std::fs::write(
        &tools,
        json!([tool("added_one"), tool("added_$(touch x)"), tool("added_`id`")]).to_string(),
    )
    .unwrap();
    let stub = stub_stdio(&["--only", "read_item", "--tools", tools.to_str().unwrap()]);
    let proxy = Proxy::unready(json!({"mcpServers": {"disk": stub}}), folder).ready();
    let folder: TempDir = proxy.end();
    let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["listen"] = json!(format!("127.0.0.1:{}", free_port()));
    let path = configure(config, folder.path()).display().to_string();
    assert_eq!(completed(&path, "mcpproxy call tool-read disk:added"), ["added_one"]);
    assert_eq!(
        completed(&path, "mcpproxy call tool-read di"),
        ["disk:added_one", "disk:read_item"]
    );
    assert_eq!(completed("/no/such/config", "mcpproxy call tool-read di"), [""; 0]);
}

#[test]
fn schema_of_the_config_is_printed_and_published() {
    let printed = cli(&["config", "schema"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let schema = printed.json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let published = proxy().get("/api/v1/config/schema.json");
    assert_eq!((published.status, published.json()), (200, schema.clone()));
    assert_eq!(proxy().request("GET", "/api/v1/config/schema.json", &[], b"").status, 401);
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("mcp_config.json");
    let init = Output::of(mcpproxy().arg("-c").arg(&file).arg("init").env("HOME", home.path()));
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    let add = ["upstream", "add", "files", "--no-check", "--env", "A=b", "--", "true", "x"];
    let added = Output::of(mcpproxy().arg("-c").arg(&file).args(add).env("HOME", home.path()));
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    // Commands in messages are about the same file.
    let serve = format!("mcpproxy -c {} serve", file.display());
    for shown in [&init.stdout, &added.stdout] {
        assert!(shown.contains(&serve), "{shown}");
    }
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(&config).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    config["lisen"] = json!("127.0.0.1:1");
    assert!(!validator.is_valid(&config));
    config.as_object_mut().unwrap().remove("lisen");
    // A file that names its schema is read without a warning.
    config["$schema"] = json!("./schema.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let check = Output::of(
        mcpproxy().arg("-c").arg(&file).args(["config", "check"]).env("HOME", home.path()),
    );
    assert!(!check.stdout.contains("$schema"), "{}", check.stdout);
}

#[test]
fn change_is_reported_as_in_force_only_if_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.cedar");
    std::fs::write(&rules, "permit(principal, action, resource);").unwrap();
    let config = json!({"mcpServers": {}, "policy": {"files": [rules]}});
    let proxy = Proxy::unready(config, folder).ready();
    let add = |name: &str| {
        let args = ["--json", "upstream", "add", name, "--no-check", "--", "true"];
        let output = proxy.cli(&args);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.json()["proxy"].clone()
    };
    assert_eq!(add("one")["state"], "in_force");
    // The proxy does not read the copied file, so the content of the copy is not in force.
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("config.json");
    std::fs::copy(proxy.folder.path().join("config.json"), &copy).unwrap();
    let mut command = mcpproxy();
    command.arg("-c").arg(&copy).env("MCPPROXY_LISTEN", format!("127.0.0.1:{}", proxy.port));
    let printed = Output::of(command.args(["upstream", "disable", "one"]));
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(printed.stdout.contains("reads another file"), "{}", printed.stdout);
    // Unreadable rules cause the whole config to be rejected, even if the proxy has read them before the request.
    std::fs::write(&rules, "nonsense").unwrap();
    until("they are read", || proxy.activity("type=config_change&status=error").pop());
    let refused = add("two");
    assert_eq!(refused["state"], "refused", "{refused}");
    assert!(refused["reason"].as_str().unwrap().contains("rules.cedar"), "{refused}");
    let printed = proxy.cli(&["upstream", "disable", "two"]).stdout;
    assert!(printed.contains("keeps its previous config"), "{printed}");
}

#[test]
fn doctor_checks_certificates_and_reports_each_fault_once() {
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::new("an authority");
    authority.local().write(folder.path(), "good");
    authority.expired("old", &["localhost"]).write(folder.path(), "old");
    let listen = format!("127.0.0.1:{}", free_port());
    let doctor = |cert: &str, key: &str| {
        let tls = json!({"cert": cert, "key": key});
        let path = configure(json!({"listen": listen, "tls": tls}), folder.path());
        let output = Output::of(mcpproxy().arg("-c").arg(path).args(["doctor", "--json"]));
        let findings = output.json()["findings"].as_array().unwrap().clone();
        let about = findings.iter().filter(|it| it["text"].as_str().unwrap().contains("tls."));
        let about = about.map(|it| ["check", "outcome", "text", "mend"].map(|at| it[at].clone()));
        (output.code, about.collect::<Vec<_>>())
    };
    let (_, good) = doctor("good.pem", "good.key");
    assert_eq!(
        (good.len(), &good[0][0], &good[0][1]),
        (1, &json!("tls"), &json!("ok")),
        "{good:?}"
    );
    for (cert, key, text, remedy) in [
        ("old.pem", "old.key", "has expired", "renew"),
        ("good.pem", "old.key", "does not match", "openssl"),
        ("good.pem", "none.key", "cannot be read", "config path"),
    ] {
        let (code, reported) = doctor(cert, key);
        assert_eq!((code, reported.len()), (Some(1), 1), "{reported:?}");
        let [check, outcome, reason, command] = &reported[0];
        assert_eq!((check, outcome), (&json!("tls"), &json!("wrong")), "{reported:?}");
        assert!(reason.as_str().unwrap().contains(text), "{reported:?}");
        assert!(command.as_str().unwrap().contains(remedy), "{reported:?}");
    }
}

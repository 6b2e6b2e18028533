//! First steps: creating a config, importing servers of other programs, and connecting clients to the proxy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Output, mcpproxy, stub};

/// An empty home folder.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        Output::of(&mut self.command(mcpproxy(), args))
    }

    fn command(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).env("HOME", self.0.path()).current_dir(self.0.path());
        command.env_remove("XDG_CONFIG_HOME").env_remove("CODEX_HOME");
        // `tools/keyring` tests with a real keyring.
        command.env_remove("DBUS_SESSION_BUS_ADDRESS").env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs a command at a terminal where `answer` is typed. Returns the output.
    fn typed(&self, args: &[&str], answer: &str) -> String {
        let program = mcpproxy();
        let words = std::iter::once(program.get_program().to_str().unwrap());
        let words = words.chain(args.iter().copied()).map(|word| format!("{word:?}"));
        let words = words.collect::<Vec<_>>().join(" ");
        let mut script = self.command(Command::new("script"), &["-qec", &words, "/dev/null"]);
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        let output = Output::given(&mut script, answer);
        assert_eq!(output.code, Some(0), "{args:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    fn config(&self) -> Value {
        serde_json::from_str(&self.text(CONFIG)).unwrap()
    }
}

const CONFIG: &str = ".mcpproxy/mcp_config.json";

/// Output of a command that succeeded.
#[track_caller]
pub(crate) fn done(output: &Output) -> &str {
    assert_eq!(output.code, Some(0), "{} {}", output.stdout, output.stderr);
    &output.stdout
}

#[cfg(target_os = "linux")]
const FILES: [(&str, &str); 7] = [
    ("claude-desktop", ".config/Claude/claude_desktop_config.json"),
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".config/Code/User/mcp.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("codex", ".codex/config.toml"),
    ("zed", ".config/zed/settings.json"),
];

#[test]
fn init_creates_a_config_that_is_used_and_kept() {
    let home = Home::new();
    let output = home.run(&["init"]);
    assert!(done(&output).contains("mcpproxy import"), "{}", output.stdout);
    let config = home.config();
    assert_eq!(config["api_key"].as_str().unwrap().len(), 64);
    assert!(!output.stdout.contains(config["api_key"].as_str().unwrap()), "the key is not shown");
    let mode = |path: &str| fs::metadata(home.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(CONFIG), mode(".mcpproxy")), (0o600, 0o700));
    assert!(done(&home.run(&["config", "check"])).ends_with("ok\n"));
    // The schema for editors is a file in the config's folder, available without a network.
    let named = config["$schema"].as_str().unwrap();
    let schema = home.text(&format!(".mcpproxy/{}", named.strip_prefix("./").unwrap()));
    assert_eq!(schema.trim_end(), done(&home.run(&["config", "schema"])).trim_end());
    home.put(".mcpproxy/mcp_config.schema.json", "that of an older version");
    let before = home.text(CONFIG);
    assert!(done(&home.run(&["init"])).contains("exists: nothing changed"));
    assert_eq!(home.text(CONFIG), before);
    assert_eq!(home.text(".mcpproxy/mcp_config.schema.json"), schema, "it is renewed");
    done(&home.run(&["upstream", "add", "--no-check", "x", "--", "true"]));
    assert_eq!(home.config()["$schema"], named, "an edit keeps it");
    assert!(done(&home.run(&["config", "check"])).ends_with("ok\n"));
}

#[test]
fn init_reports_file_permissions_and_the_effective_key() {
    let mode = |home: &Home| fs::metadata(home.path(CONFIG)).unwrap().permissions().mode() & 0o777;
    let blank = |home: &Home, file: &str| {
        home.put(file, "\n");
        fs::set_permissions(home.path(file), fs::Permissions::from_mode(0o644)).unwrap();
    };
    let own = "readable only by you, with a generated API key";
    let home = Home::new();
    blank(&home, CONFIG);
    let output = home.run(&["init"]);
    assert!(done(&output).contains(own), "{}", output.stdout);
    assert_eq!((mode(&home), home.config()["api_key"].as_str().unwrap().len()), (0o600, 64));
    // The permissions of a link's target are left unchanged: they may be intended.
    let home = Home::new();
    blank(&home, "real.json");
    fs::create_dir(home.path(".mcpproxy")).unwrap();
    std::os::unix::fs::symlink("../real.json", home.path(CONFIG)).unwrap();
    let output = home.run(&["init"]);
    assert_eq!(mode(&home), 0o644);
    let printed = done(&output);
    assert!(printed.contains("mode 644") && !printed.contains("only by you"), "{printed}");
    // An existing file, to which a key is added.
    let home = Home::new();
    home.put(CONFIG, "{}");
    fs::set_permissions(home.path(CONFIG), fs::Permissions::from_mode(0o640)).unwrap();
    let output = home.run(&["init"]);
    assert!(
        done(&output).contains("added an API key. The file is accessible to others"),
        "{}",
        output.stdout
    );
    let home = Home::new();
    let mut command = home.command(mcpproxy(), &["init"]);
    let key = "0123456789abcdef0123456789abcdef-key";
    let output = Output::of(command.env("MCPPROXY_API_KEY", key));
    let printed = done(&output);
    assert!(printed.contains("MCPPROXY_API_KEY") && !printed.contains("generated"), "{printed}");
    assert!(home.config().get("api_key").is_none());
}

#[test]
fn terminal_prompt_applies_changes_only_after_yes() {
    let home = Home::new();
    done(&home.run(&["init"]));
    let theirs = json!({"mcpServers": {"one": {"command": "true"}}}).to_string();
    home.put(".cursor/mcp.json", &theirs);
    for answer in ["n\n", "\n", "what\n"] {
        for args in [["import", "cursor"], ["connect", "cursor"]] {
            let seen = home.typed(&args, answer);
            assert!(seen.contains("[y/N]") && seen.contains("Nothing was changed."), "{seen}");
        }
        assert_eq!(home.config()["mcpServers"], json!({}));
        assert_eq!(home.text(".cursor/mcp.json"), theirs);
    }
    let seen = home.typed(&["import", "cursor"], "y\n");
    assert!(seen.contains("Add 1 server to") && seen.contains("Added 1 server."), "{seen}");
    assert_eq!(home.config()["mcpServers"]["one"]["command"], "true");
    let seen = home.typed(&["connect", "cursor"], "YES\n");
    assert!(
        seen.contains("Write this entry for Cursor?") && seen.contains("is connected"),
        "{seen}"
    );
    assert!(home.text(".cursor/mcp.json").contains("\"mcpproxy\""));
    let seen = home.typed(&["connect", "cursor", "--undo"], "n\n");
    assert!(
        seen.contains("Remove this entry from Cursor?") && seen.contains("Nothing was changed.")
    );
    assert!(home.text(".cursor/mcp.json").contains("\"mcpproxy\""));
}

#[test]
fn removal_of_a_server_is_confirmed_at_a_terminal() {
    let home = Home::new();
    let server = json!({"url": "http://127.0.0.1:9/"});
    let servers = json!({"mcpServers": {"a": server, "b": server, "c": server}}).to_string();
    home.put(CONFIG, &servers);
    let seen = home.typed(&["upstream", "remove", "a"], "n\n");
    assert!(seen.contains("Remove server 'a' from ") && seen.contains("? [y/N]"), "{seen}");
    assert!(seen.contains("Nothing was changed.") && home.text(CONFIG) == servers, "{seen}");
    let seen = home.typed(&["upstream", "remove", "a"], "y\n");
    assert!(seen.contains("Removed 'a'"), "{seen}");
    let seen = home.typed(&["upstream", "remove", "b", "--yes"], "");
    assert!(seen.contains("Removed 'b'") && !seen.contains("[y/N]"), "{seen}");
    done(&home.run(&["upstream", "remove", "c"]));
    assert_eq!(home.config()["mcpServers"], json!({}));
}

#[cfg(target_os = "linux")]
#[test]
fn servers_of_all_clients_are_imported_with_their_secrets_and_no_secret_is_shown() {
    let home = Home::new();
    let secret = "gh-s3cr3t-0123456789";
    let stdio = json!({"command": "npx", "args": ["-y", "pkg"], "env": {"TOKEN": secret}});
    let http = json!({"type": "http", "url": "https://h.example/mcp", "headers": {"Authorization": format!("Bearer {secret}")}});
    home.put(FILES[0].1, &json!({"mcpServers": {"one": stdio, "mcpproxy": {"command": "/bin/mcpproxy", "args": ["stdio"]}}}).to_string());
    home.put(
        FILES[1].1,
        &json!({"numStartups": 7, "mcpServers": {"two": http, "one": stdio}}).to_string(),
    );
    home.put(FILES[2].1, &format!("{{\n  // mine\n  \"mcpServers\": {{\"three\": {http}, \"one\": {{\"command\": \"other\"}},}}\n}}"));
    home.put(FILES[3].1, &json!({"servers": {"io.github/four": http}, "inputs": []}).to_string());
    home.put(
        FILES[4].1,
        &json!({"mcpServers": {"five": {"serverUrl": "https://h.example/mcp"}}}).to_string(),
    );
    home.put(FILES[5].1, &format!("[mcp_servers.six]\ncommand = \"x\"\nenv = {{ K_TOKEN = \"{secret}\" }}\n\n[mcp_servers.seven]\nurl = \"https://h.example/mcp\"\nbearer_token_env_var = \"T\"\n"));
    home.put(FILES[6].1, "{\n  \"theme\": \"x\", // dark\n  \"context_servers\": {\"eight\": {\"source\": \"custom\", \"command\": {\"path\": \"y\", \"args\": [\"a\"]}}}\n}");
    let looked = home.run(&["import", "--dry-run"]);
    let shown = done(&looked);
    assert!(shown.contains("+ \"one\": {") && shown.contains("[redacted]"), "{shown}");
    assert!(!home.path(CONFIG).exists(), "a dry run changes nothing");
    let asked = home.run(&["import"]);
    assert_eq!(asked.code, Some(2), "nobody can be asked: {}", asked.stderr);
    assert!(!home.path(CONFIG).exists());
    let output = home.run(&["import", "--yes"]);
    assert!(done(&output).contains("Added 7 servers"), "{} {}", output.stdout, output.stderr);
    for same in ["'three' of Cursor", "'io.github/four' of VS Code"] {
        let reported = format!("not imported: {same}: it is the same server as 'two'");
        assert!(output.stderr.contains(&reported), "{}", output.stderr);
    }
    assert!(output.stderr.contains("! it has the command or URL of 'two'"), "{}", output.stderr);
    for printed in [&looked, &asked, &output] {
        assert!(!format!("{}{}", printed.stdout, printed.stderr).contains(secret));
    }
    let servers = home.config()["mcpServers"].clone();
    assert_eq!(servers["one"], stdio);
    assert_eq!(servers["one-cursor"], json!({"command": "other"}));
    assert_eq!(servers["two"]["headers"]["Authorization"], format!("Bearer {secret}"));
    assert_eq!(servers["five"], json!({"url": "https://h.example/mcp"}));
    assert_eq!(servers["six"], json!({"command": "x", "env": {"K_TOKEN": secret}}));
    assert_eq!(servers["seven"]["headers"]["Authorization"], "Bearer ${env:T}");
    assert_eq!(servers["eight"], json!({"command": "y", "args": ["a"]}));
    assert_eq!(servers.as_object().unwrap().len(), 7, "{servers}");
    let again = home.run(&["import", "--yes"]);
    let searched = format!("Nothing to import. Searched files:\n  {}", home.path("").display());
    assert!(done(&again).contains(&searched), "{}", again.stdout);
}

// CFG-7
#[test]
fn import_that_finds_nothing_names_the_searched_files() {
    let home = Home::new();
    home.put(CONFIG, "{}");
    home.put(".cursor/mcp.json", r#"{"mcpServers": {}}"#);
    let output = home.run(&["import", "cursor", "zed"]);
    let shown = done(&output);
    let cursor = format!("\n  {}\n", home.path(".cursor/mcp.json").display());
    assert!(
        shown.starts_with("Nothing to import. Searched files:") && shown.contains(&cursor),
        "{shown}"
    );
    let zed = shown.lines().find(|line| line.contains("zed"));
    assert!(zed.is_some_and(|zed| zed.ends_with("settings.json (missing)")), "{shown}");
    assert!(!shown.contains("claude"), "{shown}");
}

// SEC-2
#[test]
fn import_shows_complete_commands_and_marks_text_that_a_shell_interprets() {
    let home = Home::new();
    let code = "API_KEY=\"$(touch PWNED)\" exec node --token=abc s.js";
    let theirs = json!({"mcpServers": {"x": {"command": "sh", "args": ["-c", code],
        "env": {"API_KEY": "s3cret-value-1", "PS4": "$(touch PWNED)+", "SHELLOPTS": "xtrace"}}}});
    home.put(".cursor/mcp.json", &theirs.to_string());
    let looked = home.run(&["import", "cursor", "--dry-run"]);
    let shown = done(&looked);
    let row = json!(["-c", code]).to_string().replace("\",\"", "\", \"");
    assert!(shown.contains(&row), "{shown}");
    assert!(
        !shown.contains("s3cret-value-1") && shown.contains("\"API_KEY\": \"[redacted]\""),
        "{shown}"
    );
    let marks = shown.lines().skip_while(|line| !line.contains(&row)).nth(1).unwrap();
    let args = shown.lines().find(|line| line.contains(&row)).unwrap();
    let marked: String = marks
        .char_indices()
        .filter(|(_, mark)| *mark == '^')
        .map(|(at, _)| &args[at..=at])
        .collect();
    assert_eq!(marked, "\\\"$()\\\"", "{shown}");
    assert!(shown.contains("! command: 'sh' is a shell"), "{shown}");
    let env = shown.lines().position(|line| line.contains("\"PS4\": \"$(touch PWNED)+\"")).unwrap();
    assert!(shown.lines().nth(env + 1).unwrap().contains("^^"), "{shown}");
    assert!(shown.contains("! env.PS4: decides which code runs: check its value"), "{shown}");
    let seen = home.typed(&["import", "cursor", "--color", "never"], "n\n");
    assert!(seen.contains(&row), "{seen}");
    let seen = home.typed(&["import", "cursor", "--color", "always"], "n\n");
    assert!(seen.contains("\u{1b}["), "{seen}");
}

#[cfg(target_os = "linux")]
#[test]
fn import_of_hostile_and_broken_files_runs_no_command_and_does_not_block_the_others() {
    let home = Home::new();
    let ran = home.path("ran");
    let shell = format!("touch {}", ran.display());
    let hostile = json!({"mcpServers": {
        "$(touch ran)": {"command": shell, "args": [format!("; {shell}"), format!("`{shell}`")]},
        "../../../etc/passwd": {"command": "sh", "args": ["-c", shell]},
        "a\u{1b}]0;x\u{7}\nb": {"command": "x"},
        "a:b": {"url": "https://h.example/"},
        "\u{202e}": {"command": "x"},
        "thief": {"url": "https://h.example/", "headers": {"X-A": "v ${file:~/.netrc}"}},
        "nothing": {}, "number": 7, "typed": {"command": ["sh"]},
    }});
    home.put(FILES[2].1, &hostile.to_string());
    home.put(FILES[0].1, "{\"mcpServers\": {");
    home.put(FILES[5].1, "[mcp_servers\nx = 1");
    home.put(FILES[4].1, "");
    fs::File::create(home.path(FILES[4].1)).unwrap().set_len(100 * 1024 * 1024).unwrap();
    home.put(FILES[3].1, "{\"servers\": []}");
    fs::create_dir_all(home.path(FILES[6].1)).unwrap();
    fs::write(home.path(FILES[1].1), b"\xff\xfe").unwrap();
    let output = home.run(&["import", "--yes"]);
    done(&output);
    let reported = &output.stderr;
    for words in [
        "Claude Desktop",
        "line 1 column",
        "Codex: it cannot be read: line 1",
        "larger than 16777216 bytes",
        "Windsurf",
        "not an object",
        "VS Code",
        "not UTF-8",
        "Zed: it is a folder",
        "neither a command nor a url",
        "'thief' of Cursor: it refers to a file, credential or keyring entry",
    ] {
        assert!(reported.contains(words), "no '{words}' in {reported}");
    }
    assert!(!reported.contains('\u{1b}') && !reported.contains('\u{202e}'), "{reported:?}");
    let servers = home.config()["mcpServers"].as_object().unwrap().clone();
    let mut names: Vec<&String> = servers.keys().collect();
    names.sort();
    assert_eq!(names, ["a--0-x--b", "a-b", "etc-passwd", "touch ran"]);
    assert_eq!(servers["touch ran"]["command"], shell, "data, as it is");
    assert!(!ran.exists(), "nothing is run");
    let named = home.run(&["import", "codex", "--yes"]);
    assert_eq!(
        named.code,
        Some(1),
        "the file of the named client cannot be read: {}",
        named.stderr
    );
}

#[cfg(target_os = "linux")]
// CFG-7
#[test]
fn each_client_is_connected_and_undo_restores_its_file_byte_for_byte() {
    for (client, file) in FILES {
        let home = Home::new();
        done(&home.run(&["init"]));
        let before = match client {
            "codex" => "# mine\nmodel = \"x\" # fast\n\n[mcp_servers.a]\ncommand = \"x\"\n".to_owned(),
            "vscode" => "{\n\t\"servers\": {\n\t\t\"a\": {\"command\": \"x\"} // mine\n\t},\n\t\"inputs\": []\n}\n".to_owned(),
            "zed" => "// Zed\n{\n  \"theme\": \"One\", // dark\n}\n".to_owned(),
            _ => "{\r\n    \"other\": [1,2],\r\n    \"mcpServers\": {\r\n        \"a\": {\"command\": \"x\"}\r\n    }\r\n}".to_owned(),
        };
        home.put(file, &before);
        fs::set_permissions(home.path(file), fs::Permissions::from_mode(0o644)).unwrap();
        let looked = home.run(&["connect", client, "--dry-run"]);
        assert!(done(&looked).contains("mcpproxy"), "{client}: {}", looked.stdout);
        assert_eq!(home.text(file), before);
        let output = home.run(&["connect", client, "--yes"]);
        assert!(done(&output).contains("is connected"), "{client}: {}", output.stdout);
        let after = home.text(file);
        match client {
            "claude-desktop" => assert!(after.contains("\"stdio\""), "{after}"),
            _ => assert!(after.contains("http://127.0.0.1:8080/mcp"), "{after}"),
        }
        let key = home.config()["api_key"].as_str().unwrap().to_owned();
        assert!(!after.contains(&key), "no key where none is asked for");
        assert_eq!(fs::metadata(home.path(file)).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(done(&home.run(&["connect", client, "--yes"])).contains("already"));
        assert_eq!(home.text(file), after);
        // The import does not offer it as a server of the client.
        assert!(!done(&home.run(&["import", client, "--dry-run"])).contains("+ \"mcpproxy\""));
        done(&home.run(&["connect", client, "--undo", "--yes"]));
        assert_eq!(home.text(file), before, "{client}");
        let folder = home.path(file).parent().unwrap().to_owned();
        let names = |folder: &Path| {
            fs::read_dir(folder)
                .unwrap()
                .flatten()
                .map(|it| it.file_name().to_string_lossy().into_owned())
                .filter(|it| it.contains("before-mcpproxy"))
                .count()
        };
        assert_eq!(names(&folder), 0, "the backup is removed with the entry");
    }
}

#[test]
fn undo_in_a_changed_file_removes_only_our_entry() {
    let home = Home::new();
    done(&home.run(&["init"]));
    home.put(".cursor/mcp.json", "{\n  \"mcpServers\": {}\n}\n");
    done(&home.run(&["connect", "cursor", "--yes"]));
    let text = home.text(".cursor/mcp.json");
    home.put(".cursor/mcp.json", &text.replacen('{', "{ // new\n  \"b\": 1,", 1));
    done(&home.run(&["connect", "cursor", "--undo", "--yes"]));
    let text = home.text(".cursor/mcp.json");
    assert!(
        text.contains("// new") && text.contains("\"b\": 1") && !text.contains("mcpproxy"),
        "{text}"
    );
    let nothing = home.run(&["connect", "cursor", "--undo", "--yes"]);
    assert!(done(&nothing).contains("no mcpproxy entry"), "{}", nothing.stdout);
    // A file created for our entry is removed with it.
    done(&home.run(&["connect", "windsurf", "--yes"]));
    assert!(home.path(".codeium/windsurf/mcp_config.json").exists());
    done(&home.run(&["connect", "windsurf", "--undo", "--yes"]));
    assert!(!home.path(".codeium/windsurf/mcp_config.json").exists());
    // A different server with our name is left unchanged.
    let theirs =
        "{\"mcpServers\": {\"mcpproxy\": {\"command\": \"npx\", \"args\": [\"-y\", \"theirs\"]}}}";
    home.put(".cursor/mcp.json", theirs);
    for args in [&["connect", "cursor", "--yes"][..], &["connect", "cursor", "--undo", "--yes"]] {
        home.run(args);
        assert_eq!(home.text(".cursor/mcp.json"), theirs);
    }
    home.put(".cursor/mcp.json", "{\"mcpServers\": ");
    let broken = home.run(&["connect", "cursor", "--yes"]);
    assert_eq!(broken.code, Some(1), "{}", broken.stderr);
    assert!(broken.stderr.contains("line 1 column"), "{}", broken.stderr);
}

// FR-043
#[test]
fn annotate_shows_the_change_and_asks_once_before_it_writes() {
    let home = Home::new();
    home.put(CONFIG, "{}");
    let stub = stub().display().to_string();
    done(&home.run(&["upstream", "add", "s", "--", &stub, "stdio", "--only", "no_hints,plain"]));
    let stated = || home.config()["mcpServers"]["s"]["capabilities"].clone();
    let seen = home.typed(&["tools", "annotate", "s"], "r\nw\nn\n");
    let change = ["no_hints: read", "plain: write", "Write this to the config file? [y/N]"];
    assert!(change.iter().all(|it| seen.contains(it)) && seen.contains("Nothing was changed."));
    assert_eq!(stated(), Value::Null);
    assert!(!seen.contains("answered"), "{seen}");
    let seen = home.typed(&["tools", "annotate", "s"], "r\nq\ny\n");
    assert!(seen.contains("1 of 2 tools answered; the others stay unannotated"), "{seen}");
    assert_eq!(stated(), json!({"no_hints": {"side_effect": "read"}}));
    // Only the tool that is left is asked about; another answer is corrected without a question.
    let seen = home.typed(&["tools", "annotate", "s"], "d\ny\n");
    assert!(seen.contains("s:plain (1 of 1)"), "{seen}");
    let output = home.run(&["tools", "annotate", "s", "--write", "no_hints"]);
    assert!(done(&output).contains("no_hints: read → write"), "{}", output.stdout);
    let all =
        json!({"no_hints": {"side_effect": "write"}, "plain": {"side_effect": "destructive"}});
    assert_eq!(stated(), all);
}

#[test]
fn entry_holds_a_hidden_token_of_the_client_where_mcp_requires_a_key() {
    let home = Home::new();
    let key = "0123456789abcdef0123456789abcdef-key";
    home.put(
        CONFIG,
        &json!({"api_key": key, "require_mcp_auth": true, "listen": "0.0.0.0:9123"}).to_string(),
    );
    let file = ".cursor/mcp.json";
    let before = "{\"mine\": 1}";
    home.put(file, before);
    fs::set_permissions(home.path(file), fs::Permissions::from_mode(0o644)).unwrap();
    let tokens = || {
        let list: Value =
            serde_json::from_str(done(&home.run(&["token", "list", "--json"]))).unwrap();
        let names = list["tokens"].as_array().unwrap().iter().map(|token| token["name"].clone());
        names.collect::<Vec<_>>()
    };
    let entry = || {
        let entry: Value = serde_json::from_str(&home.text(file)).unwrap();
        let token = entry["mcpServers"]["mcpproxy"]["headers"]["x-api-key"].as_str().unwrap();
        let expected = json!({"url": "http://127.0.0.1:9123/mcp", "headers": {"x-api-key": token}});
        assert_eq!(entry["mcpServers"]["mcpproxy"], expected);
        token.to_owned()
    };
    let mode = || fs::metadata(home.path(file)).unwrap().permissions().mode() & 0o777;
    let looked = home.run(&["connect", "cursor", "--dry-run"]);
    for part in [
        "+++",
        "Token 'connect-cursor' would be created for this entry.",
        "The file's mode would be changed from 644 to 600.",
    ] {
        assert!(done(&looked).contains(part), "{part}: {}", looked.stdout);
    }
    assert!(tokens().is_empty() && mode() == 0o644, "a dry run changes nothing");
    let in_the_way = home.path(".cursor/mcp.json.before-mcpproxy");
    fs::create_dir(&in_the_way).unwrap();
    let output = home.run(&["connect", "cursor", "--yes"]);
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    assert!(output.stderr.contains("cannot write a backup"), "{}", output.stderr);
    assert!(tokens().is_empty() && mode() == 0o644, "no token is left");
    fs::remove_dir(&in_the_way).unwrap();
    let output = home.run(&["connect", "cursor", "--yes"]);
    assert!(done(&output).contains("changed from 644 to 600"), "{}", output.stdout);
    assert!(output.stdout.contains("~/.cursor/permissions.json: mcpproxy guide clients"));
    assert_eq!(mode(), 0o600);
    let token = entry();
    assert!(token.starts_with("mcpp_"), "it is not the API key, which allows everything");
    for secret in [key, &token] {
        assert!(!format!("{}{}", output.stdout, output.stderr).contains(secret));
    }
    assert_eq!(tokens(), ["connect-cursor"]);
    // A valid token of an entry is kept; an invalid one is replaced.
    assert!(done(&home.run(&["connect", "cursor", "--yes"])).contains("already"));
    assert_eq!(entry(), token);
    done(&home.run(&["token", "rotate", "connect-cursor"]));
    assert!(done(&home.run(&["connect", "cursor", "--yes"])).contains("is connected"));
    assert_ne!(entry(), token);
    assert_eq!(tokens(), ["connect-cursor"]);
    // A limited one replaces it, and a renewal keeps the limits.
    let token = entry();
    let unknown = home.run(&["connect", "cursor", "--server", "nobody", "--yes"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.stdout);
    assert_eq!(entry(), token);
    done(&home.run(&["connect", "cursor", "--operation", "read", "--expires", "30d", "--yes"]));
    assert_ne!(entry(), token);
    done(&home.run(&["token", "rotate", "connect-cursor"]));
    done(&home.run(&["connect", "cursor", "--yes"]));
    let list: Value = serde_json::from_str(done(&home.run(&["token", "list", "--json"]))).unwrap();
    let [limited] = &list["tokens"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(limited["operations"], json!(["read"]));
    assert!(limited["expires"].is_string(), "{limited}");
    let undone = home.run(&["connect", "cursor", "--undo", "--yes"]);
    assert!(done(&undone).contains("Token 'connect-cursor' has been revoked."));
    assert_eq!(home.text(file), before);
    assert!(tokens().is_empty(), "it is revoked with the entry");
    // It is also revoked if the entry was removed by hand.
    done(&home.run(&["connect", "cursor", "--yes"]));
    home.put(file, before);
    done(&home.run(&["connect", "cursor", "--undo", "--dry-run"]));
    assert_eq!(tokens(), ["connect-cursor"]);
    let output = home.run(&["connect", "cursor", "--undo", "--yes"]);
    assert!(done(&output).contains("Token 'connect-cursor' has been revoked"), "{}", output.stdout);
    assert!(tokens().is_empty());
}

#[test]
fn entry_without_a_token_cannot_be_limited() {
    let home = Home::new();
    home.put(CONFIG, &json!({"api_key": "0123456789abcdef0123456789abcdef-key"}).to_string());
    for (client, step) in
        [("cursor", "\"require_mcp_auth\": true"), ("claude-desktop", "it starts a command")]
    {
        let refused = home.run(&["connect", client, "--operation", "read", "--yes"]);
        assert_eq!(refused.code, Some(2), "{}", refused.stdout);
        assert!(refused.stderr.contains(step), "{}", refused.stderr);
    }
    assert!(!home.path(".cursor/mcp.json").exists());
}

#[test]
fn client_connected_by_many_processes_at_once_has_one_valid_token() {
    let home = Home::new();
    let key = "0123456789abcdef0123456789abcdef-key";
    let config = json!({"api_key": key, "require_mcp_auth": true, "listen": "127.0.0.1:9123"});
    home.put(CONFIG, &config.to_string());
    for before in [None, Some("{\"mine\": 1}")] {
        if let Some(before) = before {
            home.put(".cursor/mcp.json", before);
        }
        std::thread::scope(|scope| {
            let all = [(); 6].map(|()| scope.spawn(|| home.run(&["connect", "cursor", "--yes"])));
            for one in all {
                done(&one.join().unwrap());
            }
        });
        // An entry with an invalid token would be rewritten.
        let again = home.run(&["connect", "cursor", "--yes"]);
        assert!(done(&again).contains("already"), "{}", again.stdout);
    }
    let kept = home.text(".cursor/mcp.json.before-mcpproxy");
    assert_eq!(kept, "{\"mine\": 1}");
}

// SEC-3
#[test]
fn values_from_files_and_credentials_reach_the_server_and_a_missing_one_stops_only_its_server() {
    let home = Home::new();
    home.put("secret", "from-a-file-0123456789\n");
    fs::set_permissions(home.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let script =
        "test \"$A\" = from-a-file-0123456789 || exit 9; echo \"got $A\" >&2; exec \"$0\" stdio";
    let server =
        |value: &str| json!({"command": "sh", "args": ["-c", script, stub()], "env": {"A": value}});
    let servers = json!({
        "file": server("${file:~/secret}"),
        "missing": server("${file:/nowhere/at/all}"),
        "credential": server("${credential:token}"),
        "keyring": server("${keyring:service/user}"),
    });
    home.put(CONFIG, &json!({"mcpServers": servers, "listen": "127.0.0.1:0"}).to_string());
    let output = home.run(&["doctor", "--json"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let found = output.json()["findings"].clone();
    let state = |name: &str| {
        let is_about = |it: &&Value| it["text"].as_str().unwrap().starts_with(&format!("{name}: "));
        let all = found.as_array().unwrap().iter().filter(|it| it["check"] == "server");
        let it = all.clone().find(is_about).unwrap();
        (it["outcome"].as_str().unwrap().to_owned(), it["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(state("file").0, "ok", "{found}");
    for (name, why) in [
        ("missing", "the file /nowhere/at/all, referenced by env.A, cannot be read"),
        ("credential", "CREDENTIALS_DIRECTORY is not set"),
        ("keyring", "the keyring's entry service/user, referenced by env.A, cannot be read"),
    ] {
        let (state, reason) = state(name);
        assert!(state == "wrong" && reason.contains(why), "{name}: {reason}");
    }
    let logs = home.run(&["upstream", "logs", "file"]);
    assert!(done(&logs).contains("got [redacted]"), "{}", logs.stdout);
    let checked = home.run(&["config", "check"]);
    assert!(
        checked.stderr.contains("/secret contains a secret and is accessible to others (mode 644)"),
        "{}",
        checked.stderr
    );
}

#[cfg(target_os = "linux")]
#[test]
fn servers_of_projects_are_imported_and_unusable_ones_are_reported() {
    let home = Home::new();
    let stdio = |name: &str| json!({"type": "stdio", "command": "sh", "args": ["-c", name]});
    home.put(
        ".claude.json",
        &json!({
            "mcpServers": {"of-all": stdio("a")},
            "projects": {
                "/home/ada/p": {"mcpServers": {"local": stdio("b"), "of-all": stdio("c")}, "history": []},
                "/home/ada/q": {"mcpServers": []},
                "/home/ada/r": 7,
            },
        })
        .to_string(),
    );
    home.put(".mcp.json", &json!({"mcpServers": {"shared": {"type": "sse", "url": "https://h.example/sse", "headers": {"A": "Bearer ${input:k}"}}}}).to_string());
    home.put(
        ".vscode/mcp.json",
        &json!({"servers": {
            "folder": {"command": "${workspaceFolder}/s", "envFile": ".env"},
            "script": {"url": "javascript:alert(1)"},
            "file": {"url": "file:///etc/passwd"},
        }})
        .to_string(),
    );
    let looked = home.run(&["import", "--dry-run"]);
    let shown = done(&looked);
    for expected in [
        "@@ 1 · Claude Code @@",
        "@@ 2 · Claude Code, for /home/ada/p @@",
        "@@ 3 · Claude Code, for /home/ada/p, named 'of-all' there @@",
        "! headers.A: holds ${input:k}, and input prompts are not supported: write ${env:NAME}",
        "! disabled: give the value, then run mcpproxy upstream enable shared",
        "! url: ends in /sse",
        "! type: ",
        "! command: ",
        "! envFile: ",
        "not imported: 'script' of VS Code: its url scheme is not https, http or unix",
        "not imported: 'file' of VS Code",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let output = home.run(&["import", "--yes", "-o", "json"]);
    let answer: Value = serde_json::from_str(done(&output)).unwrap();
    let local = answer["servers"].as_array().unwrap().iter().find(|it| it["server"] == "local");
    assert_eq!(local.unwrap()["project"], "/home/ada/p");
    let shell = "command: 'sh' is a shell: it runs its args as code";
    assert_eq!(local.unwrap()["doubts"], json!([shell]));
    let servers = home.config()["mcpServers"].clone();
    let names: Vec<_> = servers.as_object().unwrap().keys().collect();
    // The disabled server comes last.
    assert_eq!(names, ["of-all", "local", "of-all-claude-code", "folder", "shared"]);
    assert_eq!(
        (&servers["shared"]["enabled"], servers["folder"].get("enabled")),
        (&json!(false), None)
    );
}

#[test]
fn servers_to_import_are_chosen_by_number_or_name() {
    let home = Home::new();
    done(&home.run(&["init"]));
    let servers = ["a", "b", "c", "d"].map(|name| (name.to_owned(), json!({"command": name})));
    let theirs = json!({"mcpServers": servers.into_iter().collect::<serde_json::Map<_, _>>()});
    home.put(".cursor/mcp.json", &theirs.to_string());
    let names = || {
        let config = home.config();
        config["mcpServers"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let seen = home.typed(&["import", "cursor"], "2-3\n");
    assert!(seen.contains("@@ 4 · Cursor @@") && seen.contains("Added 2 servers."), "{seen}");
    assert_eq!(names(), ["b", "c"]);
    let seen = home.typed(&["import", "cursor"], "none\n");
    assert!(seen.contains("Nothing was changed."), "{seen}");
    let unknown = home.run(&["import", "cursor", "--server", "d", "--server", "e", "--yes"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.stdout);
    assert!(unknown.stderr.contains("no server 'e' to import"), "{}", unknown.stderr);
    let present = home.run(&["import", "cursor", "--server", "b", "--yes"]);
    assert_eq!(present.code, Some(1), "{}", present.stdout);
    assert!(present.stderr.contains("server 'b' is already in the config"), "{}", present.stderr);
    done(&home.run(&["import", "cursor", "--server", "d", "--yes"]));
    assert_eq!(names(), ["b", "c", "d"]);
}

/// Config files of clients with servers: `fs` and `web`, two servers that differ in a variable, one that mcpproxy has
/// under another name, and one that mcpproxy does not support.
const WITH_SERVERS: [(&str, &str, &str); 2] = [
    (
        "cursor",
        ".cursor/mcp.json",
        r#"{
    "theme": "dark", // mine
    "mcpServers": {
        "fs": {"command": "sh", "args": ["-c", "true $HOME"], "env": {"TOKEN": "s3cret-value-1"}}, // files
        "web": {"url": "https://h.example/mcp"},
        "db-test": {"command": "db", "env": {"DATABASE": "test"}},
        "db-prod": {"command": "db", "env": {"DATABASE": "prod"}},
        "known": {"command": "known", "env": {"TOKEN": "s3cret-value-2"}},
        "script": {"url": "javascript:alert(1)"}
    }
}
"#,
    ),
    (
        "codex",
        ".codex/config.toml",
        r#"# mine
model = "x" # fast

[mcp_servers.fs]
command = "sh" # files
args = ["-c", "true $HOME"]
startup_timeout_sec = 20
env = { TOKEN = "s3cret-value-1" }

[mcp_servers.web]
url = "https://h.example/mcp"

[mcp_servers.db-test]
command = "db"
env = { DATABASE = "test" }

[mcp_servers.db-prod]
command = "db"
env = { DATABASE = "prod" }

[mcp_servers.known]
command = "known"
env = { TOKEN = "s3cret-value-2" }

[mcp_servers.script]
url = "javascript:alert(1)"
"#,
    ),
];
/// Names of the movable servers.
const MOVABLE: [&str; 5] = ["fs", "web", "db-test", "db-prod", "known"];

/// A home folder with a config that has no servers, except one that equals the client's `known`.
fn home_with_known() -> Home {
    let home = Home::new();
    let known =
        json!({"command": "known", "env": {"TOKEN": "${keyring:known/me}"}, "init_timeout": "9s"});
    let config = json!({"mcpServers": {"renamed": known}, "listen": "127.0.0.1:9123"});
    home.put(CONFIG, &config.to_string());
    home
}

/// Asserts that the config has each moved server once, and the other server unchanged.
#[track_caller]
fn assert_moved(home: &Home) {
    let servers = home.config()["mcpServers"].clone();
    let names: Vec<_> = servers.as_object().unwrap().keys().collect();
    assert_eq!(names, ["renamed", "fs", "web", "db-test", "db-prod"]);
    assert_eq!(servers["renamed"]["init_timeout"], "9s");
    assert_eq!(servers["fs"]["env"]["TOKEN"], "s3cret-value-1");
    assert_eq!(servers["db-prod"]["env"]["DATABASE"], "prod");
}

// CFG-7
#[test]
fn servers_of_a_client_are_moved_on_request_and_undo_restores_its_file_byte_for_byte() {
    for (client, file, before) in WITH_SERVERS {
        let home = home_with_known();
        home.put(file, before);
        let all = [&MOVABLE[..], &["script"]].concat();
        let looked = home.run(&["connect", client, "--move", "--dry-run", "--json"]).json();
        assert_eq!(looked["moved"], json!(MOVABLE), "{looked}");
        let output = home.run(&["connect", client, "--dry-run"]);
        let shown = done(&output);
        assert!(shown.contains("known (mcpproxy has it as 'renamed')"), "{shown}");
        assert!(shown.contains("script (not movable: its url scheme"), "{shown}");
        assert_eq!(
            (home.text(file).as_str(), &home.config()["mcpServers"]["fs"]),
            (before, &Value::Null)
        );
        // Without a request nothing is moved.
        let output = home.run(&["connect", client, "--yes", "--json"]).json();
        assert_eq!(output["direct"], json!(all), "{output}");
        assert_eq!((&output["moved"], &output["changed"]), (&json!([]), &json!(true)));
        let output = home.run(&["connect", client]);
        let hint = format!("`mcpproxy connect {client} --move` moves them into mcpproxy.");
        assert!(
            done(&output).contains("already connected") && output.stdout.contains(&hint),
            "{}",
            output.stdout
        );
        assert!(home.config()["mcpServers"].get("fs").is_none());
        let output = home.run(&["connect", client, "--move"]);
        assert_eq!(output.code, Some(2), "nobody can be asked: {}", output.stdout);
        assert!(home.config()["mcpServers"].get("fs").is_none());

        let output = home.run(&["connect", client, "--move", "--yes"]);
        let moved = "Moved 4 servers into mcpproxy: fs, web, db-test, db-prod. Removed from ";
        let present = ": known (mcpproxy has it as 'renamed').";
        assert!(done(&output).contains(moved), "{}", output.stdout);
        assert!(output.stdout.contains(present), "{}", output.stdout);
        assert!(output.stdout.contains("without mcpproxy: script"), "{}", output.stdout);
        for shown in [
            "true $HOME",
            "! command: 'sh' is a shell",
            "mcpproxy already has 'known' as 'renamed': it is only removed there",
            "not moved: 'script': its url scheme",
        ] {
            assert!(output.stderr.contains(shown), "no {shown}: {}", output.stderr);
        }
        assert!(!format!("{}{}", output.stdout, output.stderr).contains("s3cret"));
        assert_moved(&home);
        let after = home.text(file);
        assert!(
            after.contains("mcpproxy") && after.contains("script") && after.contains("mine"),
            "{after}"
        );
        for name in MOVABLE {
            assert!(!after.contains(name), "{name}: {after}");
        }
        let again = home.run(&["connect", client, "--move", "--yes", "--json"]).json();
        assert_eq!(again["direct"], json!(["script"]));
        assert_eq!((&again["moved"], &again["changed"]), (&json!([]), &json!(false)));

        let output = home.run(&["connect", client, "--undo", "--yes"]);
        assert!(done(&output).contains("its own servers again"), "{}", output.stdout);
        assert_eq!(home.text(file), before, "{client}");
        assert_moved(&home);
        // The same in a single step.
        let output = home.run(&["connect", client, "--move", "--yes", "--json"]).json();
        assert_eq!((&output["direct"], &output["moved"]), (&json!(["script"]), &json!(MOVABLE)));
        assert_eq!(home.text(file), after, "{client}");
        assert_moved(&home);
        done(&home.run(&["connect", client, "--undo", "--yes"]));
        assert_eq!(home.text(file), before, "{client}");
        assert!(!home.path(&format!("{file}.before-mcpproxy")).exists());
    }
}

#[test]
fn servers_to_move_are_chosen_at_a_terminal() {
    let home = home_with_known();
    let (client, file, before) = WITH_SERVERS[0];
    home.put(file, before);
    let seen = home.typed(&["connect", client], "y\nn\n");
    assert!(
        seen.contains("Move 4 servers into mcpproxy, and remove 1 server that mcpproxy already has from the config of Cursor?")
            && seen.contains("[y/N, or numbers"),
        "{seen}"
    );
    assert!(seen.contains("Cursor is connected."), "{seen}");
    let entry = |name: &str| home.text(file).contains(&format!("\"{name}\""));
    assert!(entry("mcpproxy") && MOVABLE.into_iter().all(entry), "{}", home.text(file));
    let seen = home.typed(&["connect", client], "2,5\n");
    let moved = "Moved 1 server into mcpproxy: web. Removed from Cursor: known (mcpproxy has it as 'renamed').";
    assert!(seen.contains(moved), "{seen}");
    let names =
        home.config()["mcpServers"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names, ["renamed", "web"]);
    assert!(!entry("web") && !entry("known") && entry("fs"), "{}", home.text(file));
    done(&home.run(&["connect", client, "--undo", "--yes"]));
    assert_eq!(home.text(file), before);
}

#[test]
fn server_already_in_mcpproxy_is_removed_and_not_reported_as_moved() {
    let home = home_with_known();
    let known = json!({"command": "known", "env": {"TOKEN": "s3cret-value-2"}});
    home.put(".cursor/mcp.json", &json!({"mcpServers": {"known": known}}).to_string());
    let output = home.run(&["connect", "cursor", "--yes"]);
    let hint = "`mcpproxy connect cursor --move` removes them there.";
    assert!(done(&output).contains(hint), "{}", output.stdout);
    let seen = home.typed(&["connect", "cursor"], "n\n");
    assert!(
        seen.contains("Remove 1 server that mcpproxy already has from the config of Cursor?"),
        "{seen}"
    );
    let output = home.run(&["connect", "cursor", "--move", "--yes"]);
    let removed = "Removed from Cursor: known (mcpproxy has it as 'renamed').";
    assert!(done(&output).contains(removed), "{}", output.stdout);
    assert!(
        !output.stdout.contains("oved 1") && !output.stdout.contains("into mcpproxy"),
        "{}",
        output.stdout
    );
}

#[test]
fn undo_of_a_move_in_a_changed_file_keeps_the_backup_and_names_it() {
    let home = home_with_known();
    let (client, file, before) = WITH_SERVERS[0];
    home.put(file, before);
    done(&home.run(&["connect", client, "--move", "--yes"]));
    home.put(file, &home.text(file).replace("\"dark\"", "\"light\""));
    let output = home.run(&["connect", client, "--undo", "--yes"]);
    let kept = home.path(&format!("{file}.before-mcpproxy.1"));
    let expected = format!("in the backup {}: fs, web, db-test, db-prod, known.", kept.display());
    assert!(done(&output).contains(&expected), "{}", output.stdout);
    let text = home.text(file);
    assert!(
        text.contains("light") && !text.contains("mcpproxy") && !text.contains("\"fs\""),
        "{text}"
    );
    // The next connect keeps that backup and does not replace it.
    done(&home.run(&["connect", client, "--yes"]));
    let output = home.run(&["connect", client, "--undo", "--yes", "--json"]).json();
    assert_eq!(output["backup"], Value::Null);
    assert_eq!(home.text(file), text);
    assert_eq!(fs::read_to_string(kept).unwrap(), before);
}

#[test]
fn servers_added_after_the_backup_are_in_a_backup_before_they_are_removed() {
    let home = home_with_known();
    let (client, file) = ("cursor", ".cursor/mcp.json");
    // The file is created by `connect`, so that there is no backup of it.
    done(&home.run(&["connect", client, "--yes"]));
    let mut theirs: Value = serde_json::from_str(&home.text(file)).unwrap();
    theirs["mcpServers"]["late"] = json!({"command": "late", "env": {"A": "b"}});
    let with_late = serde_json::to_string_pretty(&theirs).unwrap();
    home.put(file, &with_late);
    // A move that fails leaves the server in both files.
    let in_the_way = home.path(&format!("{file}.before-mcpproxy"));
    fs::create_dir(&in_the_way).unwrap();
    let output = home.run(&["connect", client, "--move", "--yes"]);
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    assert!(output.stderr.contains("cannot write a backup"), "{}", output.stderr);
    assert!(output.stderr.contains("repeat the command"), "{}", output.stderr);
    assert_eq!(home.text(file), with_late);
    assert_eq!(home.config()["mcpServers"]["late"], json!({"command": "late", "env": {"A": "b"}}));
    fs::remove_dir(&in_the_way).unwrap();
    let output = home.run(&["connect", client, "--move", "--yes"]);
    assert!(
        done(&output).contains("Removed from Cursor: late (mcpproxy has it)."),
        "{}",
        output.stdout
    );
    assert!(!home.text(file).contains("late"));
    assert_eq!(home.config()["mcpServers"].as_object().unwrap().len(), 2);
    // A server added after that is moved as well, and the earlier backup is kept.
    let mut theirs: Value = serde_json::from_str(&home.text(file)).unwrap();
    theirs["mcpServers"]["later"] = json!({"command": "later"});
    home.put(file, &serde_json::to_string_pretty(&theirs).unwrap());
    let output = home.run(&["connect", client, "--move", "--yes"]);
    assert!(done(&output).contains("The earlier backup is kept as"), "{}", output.stdout);
    assert!(home.text(&format!("{file}.before-mcpproxy.1")).contains("\"late\""));
    assert!(home.text(&format!("{file}.before-mcpproxy")).contains("\"later\""));
    done(&home.run(&["connect", client, "--undo", "--yes"]));
    let servers: Value = serde_json::from_str(&home.text(file)).unwrap();
    assert_eq!(servers["mcpServers"], json!({"later": {"command": "later"}}));
}

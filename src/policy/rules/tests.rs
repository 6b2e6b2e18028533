//! Tests of rules, from text to ruling.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;

use super::*;
use crate::intent::Operation;
use crate::tool::{Annotations, CapabilityOverride, Rules, Tool, ToolName};
use crate::{ApprovalDemand, RuleDenial, SessionFacts};

const SCHEMA: &str = r#"{"type":"object","required":["path"],"properties":{"path":{"type":"string"},
    "force":{"type":"boolean"},"count":{"type":"integer"},"any":{},
    "labels":{"type":"array","items":{"type":"string"}},
    "target":{"type":"object","properties":{"name":{"type":"string"}}}}}"#;

fn tool(name: &str) -> Arc<Tool> {
    annotated(name, r#"{"destructiveHint":true}"#)
}

fn annotated(name: &str, annotations: &str) -> Arc<Tool> {
    let annotations: Annotations = serde_json::from_str(annotations).unwrap();
    let name = ToolName::parse(name).unwrap();
    let rules: Rules<CapabilityOverride> = Rules::default();
    Arc::new(Tool {
        input_schema: RawValue::from_string(SCHEMA.into()).unwrap(),
        ..Tool::named(name, annotations, &rules)
    })
}

fn known() -> KnownTools {
    let tools = ["files:delete", "files:read"].map(tool).to_vec();
    KnownTools {
        servers: [("files".into(), Some(tools)), ("late".into(), None)].into(),
        tokens: vec!["reader".into()],
    }
}

fn load(text: &str, default: RulesDefault) -> Result<RuleSet, Vec<String>> {
    let text = RuleText { file: "dir/r.cedar".into(), text: text.to_owned() };
    let options = RuleOptions { default, mode: RulesMode::Enforce };
    let texts = |found: Vec<RuleProblem>| found.iter().map(ToString::to_string).collect();
    RuleSet::load(&[text], options, Some(&known())).map_err(texts)
}

fn rules(text: &str) -> RuleSet {
    load(text, RulesDefault::Allow).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn asked<'a>(id: &'a str, tool: &'a Arc<Tool>, arguments: &'a str) -> RuleRequest<'a> {
    RuleRequest {
        subject: Subject { id, groups: &[] },
        action: RuleAction::Destructive,
        target: RuleTarget::Tool(tool),
        arguments: arguments.as_bytes(),
        sensitivity: None,
        reason: "",
        client: "cursor",
        session: SessionFacts::default(),
        carries_out: false,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
    }
}

fn denial(ruling: Ruling) -> RuleDenial {
    match ruling {
        Ruling::Refused(denial) => denial,
        Ruling::Permitted(by) => panic!("permitted by {by:?}"),
    }
}

fn permitted(ruling: Ruling) -> Vec<Box<str>> {
    match ruling {
        Ruling::Refused(denial) => panic!("{denial}"),
        Ruling::Permitted(by) => by,
    }
}

#[test]
fn changed_groups_get_a_new_decision() {
    let rules = rules(r#"@id("out") forbid(principal in Group::"interns", action, resource);"#);
    let tool = tool("files:delete");
    let interns: &[Box<str>] = &["interns".into()];
    for groups in [&[], interns, &[], interns] {
        let subject = Subject { id: "jwt:ada", groups };
        let ruling = rules.decide(&RuleRequest { subject, ..asked("", &tool, "{}") });
        assert_eq!(matches!(ruling, Ruling::Refused(_)), !groups.is_empty(), "{groups:?}");
    }
}

#[test]
fn forbid_wins_and_shows_its_message() {
    let rules = rules(
        r#"@id("all") permit(principal, action, resource);
           @id("no etc") @message("system files stay")
           forbid(principal, action in [Action::"read", Action::"destructive"], resource in Server::"files")
             when { context.args.path like "/etc/*" };"#,
    );
    let delete = tool("files:delete");
    let by = permitted(rules.decide(&asked("admin", &delete, r#"{"path":"/tmp/x"}"#)));
    assert_eq!(by, ["all".into()]);
    let denial = denial(rules.decide(&asked("admin", &delete, r#"{"path":"/etc/passwd"}"#)));
    assert_eq!(
        denial.to_string(),
        "Tool 'files:delete' is not allowed by rule 'no etc': system files stay"
    );
    assert_eq!((denial.rules, denial.approval), (vec!["no etc".into()], ApprovalDemand::None));
}

#[test]
fn rule_errs_for_another_spelling_of_a_resource_or_prompt_that_it_names() {
    let rules = rules(
        r#"@id("keys") forbid(principal, action == Action::"read_resource", resource == Resource::"files:file:///keys");
           @id("admin") @requires("approval") forbid(principal == Agent::"admin", action == Action::"get_prompt", resource)
             when { resource == Prompt::"files:admin" };"#,
    );
    let delete = tool("files:delete");
    let resource = |uri| RuleRequest {
        action: RuleAction::ReadResource,
        target: RuleTarget::Resource { server: "files", uri },
        ..asked("anonymous", &delete, "{}")
    };
    let prompt = |id, name| RuleRequest {
        action: RuleAction::GetPrompt,
        target: RuleTarget::Prompt { server: "files", name },
        ..asked(id, &delete, "{}")
    };
    let exact = denial(rules.decide(&resource("file:///keys")));
    assert_eq!(exact.to_string(), "Resource 'files:file:///keys' is not allowed by rule 'keys'");
    let spelled = resource("FILE:///a/../%6beys");
    let refused = denial(rules.decide(&spelled)).to_string();
    let why =
        "the URI is another spelling of 'file:///keys', which the rule names: write 'file:///keys'";
    assert!(refused.ends_with(&format!("rule 'keys': it cannot be evaluated: {why}")), "{refused}");
    let explained = rules.explain(&spelled);
    let traced = explained.rules.iter().map(|it| (&*it.at.rule, it.outcome.clone()));
    assert_eq!(traced.collect::<Vec<_>>(), [("keys", RuleOutcome::Errs(why.into()))]);
    assert!(!rules.shows_resource(spelled.subject, "files", "file:/keys"));

    let refused = denial(rules.decide(&prompt("admin", "ADM\u{131}N")));
    let why = "the name differs only by case from 'admin', which the rule names: write 'admin'";
    assert!(refused.to_string().ends_with(why), "{refused}");
    assert_eq!(refused.approval, ApprovalDemand::None);
    assert_eq!(denial(rules.decide(&prompt("admin", "admin"))).approval, ApprovalDemand::Asked);

    permitted(rules.decide(&prompt("anonymous", "Admin")));
    permitted(rules.decide(&resource("file:///keys2")));
    let elsewhere = RuleTarget::Resource { server: "late", uri: "file:/keys" };
    permitted(rules.decide(&RuleRequest { target: elsewhere, ..spelled }));
}

#[test]
fn rule_about_one_entity_type_ignores_others() {
    let rules = rules(
        r#"@id("documents") forbid(principal, action, resource is Resource in Server::"files");"#,
    );
    let delete = tool("files:delete");
    permitted(rules.decide(&asked("admin", &delete, "{}")));
    let resource = |server| RuleRequest {
        action: RuleAction::ReadResource,
        target: RuleTarget::Resource { server, uri: "file:///a" },
        ..asked("admin", &delete, "{}")
    };
    assert_eq!(denial(rules.decide(&resource("files"))).rules, ["documents".into()]);
    permitted(rules.decide(&resource("late")));
}

#[test]
fn tool_known_by_name_only_is_matched_by_name() {
    let rules = rules(r#"@id("one") forbid(principal, action, resource == Tool::"files:delete");"#);
    let catalog = tool("files:delete");
    for _ in 0..2 {
        for (tool, refused) in [("delete", true), ("read", false)] {
            let target = RuleTarget::NamedTool { server: "files", tool };
            let request = RuleRequest { target, ..asked("admin", &catalog, "{}") };
            let ruling = rules.decide(&request);
            assert_eq!(matches!(ruling, Ruling::Refused(_)), refused, "{tool}");
        }
    }
}

#[test]
fn default_decides_if_no_rule_does() {
    let delete = tool("files:delete");
    let request = asked("admin", &delete, "{}");
    assert_eq!(permitted(rules("").decide(&request)), []);
    let strict = load(
        r#"permit(principal == Agent::"token:a", action, resource in Server::"files");"#,
        RulesDefault::Deny,
    )
    .unwrap();
    let text = denial(strict.decide(&request)).to_string();
    assert_eq!(text, "Tool 'files:delete' is not allowed by rule 'default': no rule permits it");
    let by = permitted(strict.decide(&asked("token:a", &delete, "{}")));
    assert_eq!(by, ["r.cedar:1".into()], "a rule without @id is named by its position");
}

#[test]
fn principals_are_in_groups_and_tools_in_servers() {
    let rules = rules(
        r#"@id("g") forbid(principal in Group::"interns", action, resource in Server::"files");"#,
    );
    let delete = tool("files:delete");
    let groups: [Box<str>; 2] = ["staff".into(), "interns".into()];
    let mut request = asked("jwt:ann", &delete, "{}");
    assert_eq!(permitted(rules.decide(&request)), []);
    request.subject.groups = &groups;
    assert_eq!(*denial(rules.decide(&request)).rule, *"g");
    request.target = RuleTarget::Resource { server: "files", uri: "a:b" };
    request.action = RuleAction::ReadResource;
    let text = denial(rules.decide(&request)).to_string();
    assert_eq!(text, "Resource 'files:a:b' is not allowed by rule 'g'");
    request.target = RuleTarget::Prompt { server: "other", name: "p" };
    request.action = RuleAction::GetPrompt;
    assert_eq!(permitted(rules.decide(&request)), []);
}

#[test]
fn rule_reading_unmappable_argument_denies() {
    let delete = tool("files:delete");
    let calls = r#"action in [Action::"read", Action::"write", Action::"destructive"]"#;
    let rules = rules(&format!(
        r#"@id("path") forbid(principal, {calls}, resource in Server::"files") when {{ context.args.path == "/x" }};
           @id("force") forbid(principal, {calls}, resource == Tool::"files:delete")
             when {{ context.args has force && context.args.force }};
           @id("fine") permit(principal, action, resource);"#
    ));
    for (arguments, rule, why) in [
        (r#"{"path":null}"#, "path", "argument 'path' is null"),
        (
            r#"{"path":["/x"]}"#,
            "path",
            "argument 'path' is of another type than the tool's schema says",
        ),
        (
            r#"{"path":"/y","force":1.5}"#,
            "force",
            "argument 'force' is a number that is not whole, or too large",
        ),
        (
            r#"{"path":"/y","Path":"/x"}"#,
            "path",
            "a key of the arguments differs only by case from 'path', which the rule reads: write \
             'path'",
        ),
        (
            r#"{"path":"/y","z":{"a":[{"k":1,"K":2}]}}"#,
            "path",
            "the arguments have two keys that differ only by case",
        ),
    ] {
        let denial = denial(rules.decide(&asked("admin", &delete, arguments)));
        assert_eq!(*denial.rule, *rule, "{arguments}");
        assert_eq!(*denial.message, format!("it cannot be evaluated: {why}"), "{arguments}");
    }
    let missing = denial(rules.decide(&asked("admin", &delete, "{}")));
    assert!(missing.message.contains("`path`"), "an error of Cedar is reported: {missing}");
    let good = r#"{"path":"/y","force":false,"other":null,"another":1.5}"#;
    assert_eq!(permitted(rules.decide(&asked("admin", &delete, good))), ["fine".into()]);
}

#[test]
fn case_variant_of_a_read_argument_is_refused_under_both_evaluators() {
    let delete = tool("files:delete");
    let why = "it cannot be evaluated: a key of the arguments differs only by case from 'path', which \
               the rule reads: write 'path'";
    for condition in [
        // Evaluated without Cedar:
        r#"context.args has path && context.args.path like "/etc/*""#,
        // Only Cedar can evaluate these:
        r#"principal != Agent::"token:x" && context.args has path && context.args.path like "/etc/*""#,
        r#"if context.args has path then context.args.path like "/etc/*" else false"#,
    ] {
        let rules = rules(&format!(
            r#"@id("any") forbid(principal, action == Action::"destructive", resource)
                 when {{ context.args has count && context.args.count > 3 }};
               @id("etc") forbid(principal, action == Action::"destructive", resource)
                 when {{ {condition} }};"#
        ));
        for arguments in [
            r#"{"Path":"/etc/passwd"}"#,
            r#"{"path":"/tmp/x","other":{"PATH":"/etc/passwd"}}"#,
            r#"{"labels":["x"],"any":[[{"pAth":"/etc/passwd"}]]}"#,
            "{\"\\u0050ath\":\"/etc/passwd\"}",
            "{\"\u{ff50}ath\":\"/etc/passwd\"}",
        ] {
            let request = asked("admin", &delete, arguments);
            let denial = denial(rules.decide(&request));
            assert_eq!((&*denial.rule, &*denial.message), ("etc", why), "{condition} {arguments}");
            assert_eq!(denial.approval, ApprovalDemand::None, "{condition} {arguments}");
            let explained = rules.explain(&request);
            let errs = |at: usize| match &explained.rules[at].outcome {
                RuleOutcome::Errs(why) => why.clone(),
                RuleOutcome::Holds | RuleOutcome::DoesNotHold => String::new(),
            };
            assert_eq!(format!("it cannot be evaluated: {}", errs(1)), why, "{arguments}");
            assert_eq!(errs(0), "", "the other rule reads no such name");
        }
        for (arguments, refused) in [
            (r#"{"path":"/etc/passwd"}"#, true),
            (r#"{"path":"/tmp/x","other":{"path":"Path"}}"#, false),
            (r#"{"paths":"/etc/passwd"}"#, false),
        ] {
            let ruling = rules.decide(&asked("admin", &delete, arguments));
            assert_eq!(matches!(ruling, Ruling::Refused(_)), refused, "{condition} {arguments}");
        }
    }
}

#[test]
fn case_variant_is_accepted_if_a_rule_reads_it() {
    let rules = rules(
        r#"@id("etc") forbid(principal, action == Action::"destructive", resource)
             when { (context.args has any && context.args.any == "x")
               || (context.args has Any && context.args.Any == "x") };"#,
    );
    let delete = tool("files:delete");
    for (arguments, rule) in [
        (r#"{"path":"","Any":"y"}"#, None),
        (r#"{"path":"","Any":"x"}"#, Some("etc")),
        (r#"{"path":"","ANY":"y"}"#, Some("etc")),
    ] {
        let refused = match rules.decide(&asked("admin", &delete, arguments)) {
            Ruling::Refused(denial) => Some(denial.rule),
            Ruling::Permitted(_) => None,
        };
        assert_eq!(refused.as_deref(), rule, "{arguments}");
    }
}

#[test]
fn rul_2_case_variant_read_by_another_rule_only_is_refused() {
    let rules = rules(
        r#"@id("both") forbid(principal, action == Action::"destructive", resource)
             when { (context.args has any && context.args.any == "x")
               || (context.args has Any && context.args.Any == "x") };
           @id("lower") forbid(principal, action == Action::"destructive", resource)
             when { context.args has any && context.args.any == "etc" };"#,
    );
    let delete = tool("files:delete");
    let refused = denial(rules.decide(&asked("admin", &delete, r#"{"path":"","Any":"etc"}"#)));
    assert_eq!(&*refused.rule, "lower");
    assert!(refused.message.ends_with("which the rule reads: write 'any'"), "{refused}");
    assert_eq!(permitted(rules.decide(&asked("admin", &delete, r#"{"path":"","any":"y"}"#))), []);
}

#[test]
fn unmappable_arguments_are_ignored_by_rules_that_read_no_arguments() {
    let rules = rules(r#"@id("x") forbid(principal == Agent::"admin", action, resource);"#);
    let delete = tool("files:delete");
    let arguments = r#"{"path":"/y","Path":"/x"}"#;
    assert_eq!(permitted(rules.decide(&asked("anonymous", &delete, arguments))), []);
}

#[test]
fn evaluation_error_denies_with_the_reason() {
    let rules = rules(
        r#"@id("overflow") permit(principal, action == Action::"destructive", resource)
             when { context.args has count && context.args.count + 1 > 0 };"#,
    );
    let delete = tool("files:delete");
    let denial = denial(rules.decide(&asked("admin", &delete, r#"{"count":9223372036854775807}"#)));
    assert_eq!(*denial.rule, *"overflow");
    assert!(denial.message.contains("overflow"), "{denial}");
    let text = r#"{"path":"","count":1}"#;
    assert_eq!(permitted(rules.decide(&asked("admin", &delete, text))), ["overflow".into()]);
}

#[test]
fn erring_rule_cannot_be_approved() {
    let rules = rules(
        r#"@id("ask") @requires("approval") forbid(principal, action, resource);
           @id("overflow") forbid(principal, action == Action::"destructive", resource)
             when { context.args has count && context.args.count + 1 > 0 };"#,
    );
    let delete = tool("files:delete");
    let approval = |arguments| denial(rules.decide(&asked("admin", &delete, arguments))).approval;
    assert_eq!(approval(r#"{"path":"x"}"#), ApprovalDemand::Asked);
    assert_eq!(approval(r#"{"count":9223372036854775807}"#), ApprovalDemand::None);
}

#[test]
fn cap_8_forbid_can_require_approval() {
    let text = r#"@id("ask") @requires("approval") forbid(principal, action, resource);"#;
    let delete = tool("files:delete");
    let request = asked("admin", &delete, "{}");
    assert_eq!(denial(rules(text).decide(&request)).approval, ApprovalDemand::Asked);
    let both = format!("{text} @id(\"never\") forbid(principal, action, resource);");
    assert_eq!(denial(rules(&both).decide(&request)).approval, ApprovalDemand::None);
}

#[test]
fn rules_read_all_context_members() {
    let delete = tool("files:delete");
    for condition in [
        r#"context.client == "cursor""#,
        r#"context.now < datetime("2026-01-02") && context.now >= datetime("2026-01-01")"#,
    ] {
        let text = format!("permit(principal, action, resource) when {{ {condition} }};");
        assert_eq!(permitted(rules(&text).decide(&asked("a", &delete, "{}"))).len(), 1);
    }
    for condition in [
        r#"context.intent.operation_type == "destructive" && context.intent.reason == """#,
        r#"context.intent.data_sensitivity == "unknown""#,
        r#"context.capability.side_effect == "destructive" && context.capability.open_world"#,
        r#"context.capability.approval == "auto" && !context.capability.idempotent"#,
        r#"context.session.calls == 0 && !context.session.open_world_seen"#,
        r#"context.args has target && context.args.target has name"#,
    ] {
        let text = format!(
            "permit(principal, action == Action::\"destructive\", resource) when {{ {condition} }};"
        );
        let rules = rules(&text);
        let args = r#"{"target":{"name":"x"}}"#;
        assert_eq!(permitted(rules.decide(&asked("a", &delete, args))).len(), 1, "{condition}");
    }
}

#[test]
fn no_exfiltration_preset_denies_outgoing_data() {
    let options = RuleOptions::default();
    let set = RuleSet::load(&[Preset::NoExfiltration.text()], options, Some(&known())).unwrap();
    let delete = tool("files:delete");
    let mut request = asked("a", &delete, "{}");
    assert_eq!(permitted(set.decide(&request)), []);
    request.session = SessionFacts {
        max_sensitivity: Some(crate::intent::Sensitivity::Private),
        open_world_seen: true,
        calls: 2,
    };
    let denial = denial(set.decide(&request));
    assert_eq!((&*denial.rule, denial.approval), ("no-exfiltration", ApprovalDemand::Asked));
}

#[test]
fn invalid_rule_is_rejected_with_its_position() {
    let calls = r#"action == Action::"write""#;
    let mut unlike = Vec::new();
    for (text, place, words) in [
        ("permit(principal, action, resource)", "1:1", "a ';' is missing"),
        ("// x\n permit(principal, action resource);", "2:27", "unexpected token"),
        ("permit(principal, action, resource) when { 1 };", "1:44", "expected"),
        ("permit(principal == User::\"x\", action, resource);", "1:", "User"),
        ("permit(principal == ?principal, action, resource);", "1:", "template"),
        (
            "permit(principal, action == Action::\"cal\", resource);",
            "1:37",
            "Action::\"cal\" does not exist: calls are read, write, destructive; other actions are list, ",
        ),
        (
            "forbid(principal, action, resource) when { action == Mcp::Action::\"read\" };",
            "1:",
            "Mcp::Action",
        ),
        (
            "permit(principal, action in [Action::\"list\", Action::\"reed\"], resource);",
            "1:",
            "(did you mean \"read\"?)",
        ),
        (
            "forbid(principal, action, resource == Tool::\"files\");",
            "1:45",
            "write \"server:name\"",
        ),
        (
            "forbid(principal, action == Action::\"read\", resource == Prompt::\"files:p\");",
            "1:",
            "can never match",
        ),
        ("forbid(principal, action, resource) when { false };", "1:1", "can never match"),
        (
            "forbid(principal == Agent::\"alice\", action, resource);",
            "1:28",
            "matches no principal",
        ),
        ("forbid(principal, action, resource == Tool::\"gone:x\");", "1:45", "no such server"),
        ("forbid(principal, action, resource == Tool::\"files:drop\");", "1:45", "no such tool"),
        ("forbid(principal, action, resource in Server::\"filse\");", "1:47", "no such server"),
        (
            &format!(
                "forbid(principal, {calls}, resource == Tool::\"files:delete\")\n when {{ context.args.pth == \"x\" }};"
            ),
            "2:9",
            "pth",
        ),
        (
            &format!(
                "forbid(principal, {calls}, resource in Server::\"files\") when {{ context.args has nothing }};"
            ),
            "1:1",
            "can never match",
        ),
        (
            &format!(
                "forbid(principal, {calls}, resource in Server::\"files\") when {{ context.args.path > 3 }};"
            ),
            "1:82",
            "expected",
        ),
        (
            &format!(
                "forbid(principal, {calls}, resource in Server::\"files\") when {{ context.args.force }};"
            ),
            "1:82",
            "force",
        ),
        (
            "@id(\"a\") permit(principal, action, resource); @id(\"a\") forbid(principal, action, resource);",
            "1:51",
            "is already used by the rule at",
        ),
        ("@id(\"default\") permit(principal, action, resource);", "1:5", "policy.default"),
        (
            "@requires(\"approval\") permit(principal, action, resource);",
            "1:1",
            "belongs on a forbid",
        ),
        ("@requires(\"luck\") forbid(principal, action, resource);", "1:1", "is not known"),
    ] {
        match load(text, RulesDefault::Allow) {
            Ok(_) => unlike.push(format!("{text}: no problem is found")),
            Err(found) => {
                let first = &found[0];
                let there = first.starts_with(&format!("dir/r.cedar:{place}"));
                if !there || !first.contains(words) {
                    unlike.push(format!("{text}: {first}"));
                }
            }
        }
    }
    assert!(unlike.is_empty(), "{}", unlike.join("\n"));
}

#[test]
fn rul_9_unknown_names_are_warnings_and_the_rules_remain_enforceable() {
    let check = |text: &str| {
        let texts = [RuleText { file: "r.cedar".into(), text: text.into() }];
        RuleSet::check(&texts, RuleOptions::default(), Some(&known()))
    };
    let unmet = "forbid(principal, action, resource == Tool::\"filse:read\");\n\
                 forbid(principal, action, resource == Tool::\"files:raed\");\n";
    let checked = check(unmet).unwrap();
    assert_eq!(checked.rules.len(), 2);
    let warnings: Vec<_> = checked.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "r.cedar:1:45: Tool::\"filse:read\" can never be met: there is no such server (did you mean \"files\"?)",
            "r.cedar:2:45: Tool::\"files:raed\" can never be met: the server has no such tool (did you mean \"read\"?)",
        ]
    );
    // A misspelled token is reported; one that is not similar to any may be created later.
    let agents = ["token:redaer", "token:reader", "token:ops", "jwt:reader", "anonymous"];
    let agents = agents.map(|agent| {
        format!("forbid(principal == Agent::{agent:?}, action, resource in Server::\"files\");\n")
    });
    let warnings = check(&agents.concat()).unwrap().warnings;
    assert_eq!(
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["r.cedar:1:28: Agent::\"token:redaer\" matches no token: did you mean \"token:reader\"?"]
    );
    // An error is found even after more warnings than are reported.
    let many =
        "forbid(principal, action, resource in Server::\"gone\");\n".repeat(2 * MAX_PROBLEMS);
    assert_eq!(check(&many).unwrap().warnings.len(), MAX_PROBLEMS);
    let wrong = "forbid(principal == Agent::\"alice\", action, resource);";
    let problems = check(&format!("{many}{wrong}")).unwrap_err();
    assert_eq!(problems.iter().filter(|it| it.is_error()).count(), 1);
    assert_eq!(problems.len(), MAX_PROBLEMS);
    let unnamed = check("forbid(principal, action, resource == Tool::\"files\");").unwrap_err();
    assert!(unnamed[0].is_error(), "{unnamed:?}");
}

#[test]
fn unknown_tools_and_types_are_not_problems() {
    let rules = rules(
        r#"forbid(principal, action == Action::"write", resource == Tool::"late:tool")
             when { context.args has x && context.args.x == 3 && context.args has y && context.args.y.z like "a*" };
           forbid(principal, action == Action::"write", resource)
             when { context.args has elsewhere && context.args.elsewhere };"#,
    );
    assert_eq!(rules.len(), 2);
}

#[test]
fn rul_6_all_problems_of_a_file_are_reported_in_order() {
    let text = "permit(;\n\
                forbid(principal, action, resource) when { context.clent == \"x\" };\n\
                permit(principal) when;\n\
                forbid(principal == Agent::\"alice\", action, resource == Tool::\"gone:x\")\n\
                when { context.args.a > 1 && context.clent == \"x\" };\n";
    let found = load(text, RulesDefault::Allow).unwrap_err();
    let lines: Vec<_> = found.iter().filter_map(|it| it.split(':').nth(1)).collect();
    let distinct: std::collections::BTreeSet<_> = lines.iter().collect();
    assert_eq!(
        distinct.into_iter().collect::<Vec<_>>(),
        [&"1", &"2", &"3", &"4", &"5"],
        "{found:#?}"
    );
    assert!(lines.is_sorted(), "{found:#?}");
    let of_line_4 = found.iter().filter(|it| it.contains(":4:"));
    let words = ["matches no principal", "no such server"];
    assert!(of_line_4.zip(words).all(|(found, words)| found.contains(words)), "{found:#?}");
}

#[test]
fn rul_6_unknown_attribute_is_one_problem_for_all_actions() {
    for (wrong, meant) in [("argz", "args"), ("clent", "client"), ("nw", "now")] {
        let text = format!(
            "forbid(principal, action, resource) when {{ context.{wrong} == context.{meant} }};"
        );
        let found = load(&text, RulesDefault::Allow).unwrap_err();
        let ends = format!("`{wrong}` in context not found (did you mean `{meant}`?)");
        let about = found.iter().filter(|it| it.contains(&format!("`{wrong}`")));
        let about: Vec<_> = about.collect();
        assert!(matches!(about[..], [only] if only.ends_with(&ends)), "{found:#?}");
    }
}

#[test]
fn rul_7_rule_that_reads_arguments_applies_only_to_calls() {
    let rules = rules(
        r#"@id("etc") forbid(principal, action, resource == Tool::"files:read")
             when { context.args has path && context.args.path like "/etc/*" };
           @id("why") forbid(principal, action, resource in Server::"files")
             unless { context.intent.reason != "bad" };"#,
    );
    let read = annotated("files:read", "{}");
    let refused = |request: &RuleRequest<'_>| match rules.decide(request) {
        Ruling::Refused(denial) => Some(denial.rule),
        Ruling::Permitted(_) => None,
    };
    for action in [RuleAction::Read, RuleAction::Write, RuleAction::Destructive] {
        let etc = RuleRequest { action, ..asked("admin", &read, r#"{"path":"/etc/passwd"}"#) };
        assert_eq!(refused(&etc).as_deref(), Some("etc"), "{action:?}");
        let bad = RuleRequest { reason: "bad", ..asked("admin", &read, r#"{"path":"/tmp/x"}"#) };
        assert_eq!(refused(&bad).as_deref(), Some("why"), "{action:?}");
    }
    let list = RuleRequest { action: RuleAction::List, ..asked("admin", &read, "{}") };
    assert_eq!(refused(&list), None);
    let resource = RuleRequest {
        action: RuleAction::ReadResource,
        target: RuleTarget::Resource { server: "files", uri: "file:///a" },
        ..asked("admin", &read, "{}")
    };
    assert_eq!(refused(&resource), None);
    assert!(rules.shows_tool(Subject { id: "admin", groups: &[] }, &read));
    // A rule that names only other actions is still wrong.
    let listed =
        r#"forbid(principal, action == Action::"list", resource) when { context.args has path };"#;
    assert!(load(listed, RulesDefault::Allow).unwrap_err()[0].contains("args"));
    // A rule that tests for arguments itself applies to everything.
    let tested = self::rules(
        r#"@id("home") forbid(principal, action, resource in Server::"files")
             unless { context has args && context.args has path };"#,
    );
    assert_eq!(*denial(tested.decide(&resource)).rule, *"home");
}

#[test]
fn rul_7_arguments_of_an_unknown_tool_have_any_type() {
    let late = |condition: &str| {
        let text = format!(
            "forbid(principal, action, resource == Tool::\"late:tool\") when {{ {condition} }};"
        );
        load(&text, RulesDefault::Allow).map(|rules| rules.len())
    };
    for condition in [
        "context.args.a > 1 && context.args.b like \"x\" && context.args.c && context.args.d.contains(\"x\") \
         && context.args.e.contains(3)",
        "context.args.when == datetime(\"2026-01-01\")",
        "context.args.list.containsAny([[1], [2]])",
        "context.args.a.b.c == context.args.d || context.args.a has b",
    ] {
        assert_eq!(late(condition), Ok(1), "{condition}");
    }
    let found = late("context.args.a > 1 && context.clent == \"x\"").unwrap_err();
    assert!(matches!(&found[..], [one] if one.contains("clent")), "{found:#?}");
    // The arguments of a known tool are checked.
    let known = r#"forbid(principal, action, resource == Tool::"files:read") when { context.args.path > 3 };"#;
    assert_eq!(load(known, RulesDefault::Allow).unwrap_err().len(), 1);
}

#[test]
fn ten_megabytes_of_rules_are_refused_unread() {
    let text = "permit(principal, action, resource);\n".repeat(300_000);
    let found = load(&text, RulesDefault::Allow).unwrap_err();
    assert_eq!(found, ["dir/r.cedar: 11100000 bytes of rules, at most 1048576 are read"]);
    let many: String = (0..=MAX_RULES).map(|_| "permit(principal,action,resource);").collect();
    let found = load(&many, RulesDefault::Allow).unwrap_err();
    assert!(found[0].contains("more than 5000 rules"), "{found:?}");
}

#[test]
fn lists_hide_tools_that_the_rules_forbid() {
    let (delete, read) = (tool("files:delete"), tool("files:read"));
    let who = Subject { id: "token:a", groups: &[] };
    let shown = |rules: &RuleSet| [rules.shows_tool(who, &delete), rules.shows_tool(who, &read)];
    for (text, default, expected) in [
        ("", RulesDefault::Allow, [true, true]),
        ("", RulesDefault::Deny, [false, false]),
        (
            r#"forbid(principal, action, resource == Tool::"files:delete");"#,
            RulesDefault::Allow,
            [false, true],
        ),
        (
            r#"forbid(principal, action == Action::"list", resource == Tool::"files:delete");"#,
            RulesDefault::Allow,
            [false, true],
        ),
        (
            r#"forbid(principal, action == Action::"write", resource);"#,
            RulesDefault::Allow,
            [true, true],
        ),
        // Both tools are destructive, so a call never has a lesser action.
        (
            r#"forbid(principal, action == Action::"destructive", resource);"#,
            RulesDefault::Allow,
            [false, false],
        ),
        // A person may approve the calls.
        (
            r#"@requires("approval") forbid(principal, action, resource);
               forbid(principal, action, resource == Tool::"files:read");"#,
            RulesDefault::Allow,
            [true, false],
        ),
        (
            r#"permit(principal, action == Action::"write", resource == Tool::"files:read");"#,
            RulesDefault::Deny,
            [false, false],
        ),
        (
            r#"permit(principal, action == Action::"destructive", resource == Tool::"files:read");"#,
            RulesDefault::Deny,
            [false, true],
        ),
        (
            r#"permit(principal, action == Action::"destructive", resource == Tool::"files:read") when { context.args.path == "x" };"#,
            RulesDefault::Deny,
            [false, true],
        ),
        (
            r#"forbid(principal, action == Action::"destructive", resource) when { context.args.path == "x" };"#,
            RulesDefault::Allow,
            [true, true],
        ),
        (
            r#"permit(principal == Agent::"token:b", action, resource);"#,
            RulesDefault::Deny,
            [false, false],
        ),
    ] {
        let rules = load(text, default).unwrap_or_else(|problems| panic!("{problems:#?}"));
        assert_eq!(shown(&rules), expected, "{text}");
    }
    let rules = rules(
        r#"forbid(principal, action, resource == Resource::"files:a:b");
                         forbid(principal, action == Action::"get_prompt", resource);"#,
    );
    assert!(
        !rules.shows_resource(who, "files", "a:b") && rules.shows_resource(who, "files", "a:c")
    );
    assert!(!rules.shows_prompt(who, "files", "p"));
}

#[test]
fn action_of_a_call_is_the_greater_of_stated_and_recommended_operation() {
    let rules = rules(
        r#"@id("read") forbid(principal, action == Action::"read", resource);
           @id("write") forbid(principal, action == Action::"write", resource);
           @id("destructive") forbid(principal, action == Action::"destructive", resource)
             when { context.intent.operation_type == "destructive" };"#,
    );
    for (annotations, recommended) in [
        (r#"{"readOnlyHint":true}"#, Operation::Read),
        ("{}", Operation::Write),
        (r#"{"destructiveHint":true}"#, Operation::Destructive),
    ] {
        let tool = annotated("files:any", annotations);
        for stated in Operation::ALL {
            let request = RuleRequest { action: stated.into(), ..asked("admin", &tool, "{}") };
            let expected = stated.max(recommended).as_str();
            assert_eq!(*denial(rules.decide(&request)).rule, *expected, "{stated} {annotations}");
            let explained = rules.explain(&request);
            assert_eq!(explained.rules.len(), 1, "{explained:?}");
            assert_eq!(*explained.rules[0].at.rule, *expected, "{stated} {annotations}");
        }
    }
}

#[test]
fn decision_depends_on_rules_tool_and_principal() {
    let first = rules(
        r#"forbid(principal == Agent::"token:a", action, resource == Tool::"files:delete");"#,
    );
    let second = rules("");
    let (delete, read) = (tool("files:delete"), tool("files:read"));
    for _ in 0..2 {
        denial(first.decide(&asked("token:a", &delete, "{}")));
        permitted(first.decide(&asked("token:b", &delete, "{}")));
        permitted(first.decide(&asked("token:a", &read, "{}")));
        permitted(second.decide(&asked("token:a", &delete, "{}")));
        let mut other = asked("token:a", &delete, "{}");
        other.action = RuleAction::Read;
        denial(first.decide(&other));
    }
    assert_ne!(first.version(), second.version());
}

#[test]
fn explain_traces_each_rule() {
    let rules = rules(
        r#"@id("big") forbid(principal, action == Action::"destructive", resource)
             when { context.args has count && context.args.count > 10 };
           @id("other") forbid(principal == Agent::"token:z", action, resource);
           @id("odd") permit(principal, action == Action::"destructive", resource == Tool::"files:delete")
             when { context.args.path == context.client };
           @id("reads") forbid(principal, action == Action::"read", resource == Tool::"files:delete");
           @id("lists") forbid(principal, action == Action::"list", resource);
           @id("others") forbid(principal, action == Action::"read", resource == Tool::"files:read");"#,
    );
    let delete = tool("files:delete");
    let explained = rules.explain(&asked("admin", &delete, r#"{"path":"x","count":11}"#));
    assert_eq!(*denial(explained.ruling).rule, *"big");
    let outcomes: Vec<_> = explained.rules.iter().map(|it| (&*it.at.rule, &it.outcome)).collect();
    assert_eq!(outcomes, [("big", &RuleOutcome::Holds), ("odd", &RuleOutcome::DoesNotHold)]);
    let value = |path: &str, value: &str| (path.to_owned(), Some(value.to_owned()));
    assert_eq!(explained.rules[0].values, [value("context.args.count", "11")]);
    assert_eq!(
        explained.rules[1].values,
        [value("context.args.path", "\"x\""), value("context.client", "\"cursor\"")]
    );
    assert_eq!((explained.rules[1].at.effect, explained.rules[1].at.line), ("permit", 4));
    assert_eq!(explained.action, RuleAction::Destructive);
    let others: Vec<_> = explained.rules_for_other_actions.iter().map(|it| &*it.rule).collect();
    assert_eq!(others, ["reads"]);
}

/// The combination of scopes and effects equals that of Cedar's own authorizer.
#[test]
fn decisions_equal_those_of_cedars_authorizer() {
    use cedar_policy::{
        Authorizer, Context, Decision, Entities, Entity, EntityUid, PolicySet, Request,
    };
    let principals = [
        "",
        r#" == Agent::"token:a""#,
        r#" in Group::"g""#,
        " is Agent",
        r#" is Agent in Group::"h""#,
    ];
    let actions = ["", r#" == Action::"read""#, r#" in [Action::"read", Action::"write"]"#];
    let resources = [
        "",
        r#" == Tool::"files:read""#,
        r#" in Server::"files""#,
        " is Tool",
        r#" is Tool in Server::"late""#,
    ];
    let uid = |text: &str| text.parse::<EntityUid>().unwrap();
    // The tools are read-only, so that the action of a call is the stated one.
    let [read, delete] =
        ["files:read", "files:delete"].map(|name| annotated(name, r#"{"readOnlyHint":true}"#));
    let g: [Box<str>; 1] = ["g".into()];
    for principal in principals {
        for action in actions {
            for resource in resources {
                let text =
                    format!("permit(principal{principal}, action{action}, resource{resource});");
                let ours = load(&text, RulesDefault::Deny).unwrap();
                let theirs: PolicySet = text.parse().unwrap();
                for (id, groups) in [("token:a", &g[..]), ("token:b", &[]), ("token:b", &g)] {
                    for tool in [&read, &delete] {
                        for action in [RuleAction::Read, RuleAction::Destructive] {
                            let mut request = asked(id, tool, "{}");
                            request.subject.groups = groups;
                            request.action = action;
                            let agent = uid(&format!("Agent::{id:?}"));
                            let target = uid(&format!("Tool::\"{}\"", tool.name));
                            let groups = groups.iter().map(|it| uid(&format!("Group::{it:?}")));
                            let entities = [
                                Entity::new_no_attrs(agent.clone(), groups.collect()),
                                Entity::new_no_attrs(
                                    target.clone(),
                                    [uid("Server::\"files\"")].into(),
                                ),
                            ];
                            let entities = Entities::from_entities(entities, None).unwrap();
                            let action = uid(&format!("Action::{:?}", action.as_str()));
                            let theirs = Authorizer::new().is_authorized(
                                &Request::new(agent, action, target, Context::empty(), None)
                                    .unwrap(),
                                &theirs,
                                &entities,
                            );
                            let allowed = matches!(ours.decide(&request), Ruling::Permitted(_));
                            assert_eq!(
                                allowed,
                                theirs.decision() == Decision::Allow,
                                "{text} {id}"
                            );
                        }
                    }
                }
            }
        }
    }
}

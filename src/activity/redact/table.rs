//! The shapes that secrets are known by: one table in three parts, with what must be taken out,
//! what stays beside it, and what resembles it and must stay. Pure data.
//!
//! [`KEYS`] and [`PREFIXES`] are what redaction works by. [`FORMS`] are the places in a text that
//! take more than a list to recognise; their rows are examples that every change must keep. Tests
//! and the fuzz target `record` go through all rows, nested, cut, and spelled in all ways.
//!
//! The prefixes were gathered from what issuers of credentials publish, and checked against the
//! rules of gitleaks. Its rules are not used as they are: most of its 222 expressions look for a
//! vendor's name near any string of a length, and all are meant for files at rest, where a
//! mebibyte in a second is quick.
//!
//! Size: one table, whose rows are compared with each other.

/// Whether a key must be the whole name, or its end is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// Other names that end so are ordinary: `bypass`.
    Yes,
    /// `dbPassword` is as good as `password`.
    No,
}

/// A key whose values are secret.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its words, in lower case.
    pub words: &'static str,
    /// Whether it must be the whole name.
    pub whole: Whole,
    /// Names that look like it and hold no secret.
    pub stay: &'static [&'static str],
}

const fn end(words: &'static str, stay: &'static [&'static str]) -> Key {
    Key { words, whole: Whole::No, stay }
}

const fn whole(words: &'static str, stay: &'static [&'static str]) -> Key {
    Key { words, whole: Whole::Yes, stay }
}

/// Keys whose values are secret, whatever their case and separators.
pub const KEYS: &[Key] = &[
    end("password", &["password_policy", "passwordLength", "password_updated_at"]),
    end("passwords", &[]),
    end("passwd", &[]),
    end("pwd", &["pwd_last_set"]),
    end("passphrase", &[]),
    end("passcode", &[]),
    end("secret", &["secretName", "secret_key_ref", "secretary"]),
    end("secrets", &["secrets_count"]),
    end(
        "token",
        &[
            "pageToken",
            "next_page_token",
            "nextToken",
            "NextContinuationToken",
            "continuationToken",
            "sync_token",
            "progressToken",
            "max_tokens",
            "maxTokens",
            "tokens",
            "token_count",
            "completion_tokens",
            "total-tokens",
            "token_type",
            "tokenizer",
            "cursor",
            "nextCursor",
        ],
    ),
    end("access tokens", &["output_tokens"]),
    end("api tokens", &[]),
    end("refresh tokens", &[]),
    end("jwt", &["jwt_issuer"]),
    end("api key", &["apiKeyId", "api_key_name"]),
    end("api keys", &[]),
    end("access key", &["access_key_id"]),
    end("account key", &["account_keys_url"]),
    end("shared key", &[]),
    end("secret key", &["secretKeyRef"]),
    end("private key", &["private_key_path"]),
    end("priv key", &[]),
    end("signing key", &["signing_key_id"]),
    end("encryption key", &[]),
    end("master key", &[]),
    end("auth key", &["auth_keys_count"]),
    end("session key", &[]),
    end("storage key", &[]),
    end("deploy key", &[]),
    end("ssh key", &["ssh_key_name"]),
    end("hmac key", &[]),
    end("functions key", &[]),
    end("subscription key", &[]),
    end("authorization", &["authorization_url"]),
    end("credential", &["credential_type"]),
    end("credentials", &["credentials_file"]),
    end("creds", &[]),
    end("cookie", &["cookie_policy"]),
    end("cookies", &["cookies_enabled"]),
    end("connect sid", &["sid"]),
    end("session id", &["session", "session_count"]),
    end("sessid", &[]),
    end("otp", &["otp_length", "laptop"]),
    end("psk", &[]),
    end("store pass", &["bypass"]),
    end("key pass", &[]),
    end("seed phrase", &[]),
    end("mnemonic", &["mnemonics"]),
    end("recovery code", &[]),
    end("recovery codes", &[]),
    end("backup codes", &[]),
    end("verification code", &["error_code"]),
    end("one time code", &["zip_code"]),
    end("client assertion", &["assertion"]),
    end("code verifier", &["code_challenge"]),
    end("amz signature", &["signature"]),
    end("goog signature", &[]),
    end("shared access signature", &[]),
    whole("auth", &["author", "oauth_url", "auth_type"]),
    whole("pass", &["passed", "bypass", "passes"]),
    whole("bearer", &["bearer_methods"]),
    whole("oauth2 bearer", &[]),
    whole("passin", &[]),
    whole("sig", &["config", "sigma", "design"]),
];

/// What may follow a key's name: `passwordHash`, `secret_value`, `password2`.
pub(super) const MODIFIERS: &[&str] = &[
    "hash",
    "hashed",
    "value",
    "val",
    "text",
    "plain",
    "string",
    "str",
    "encrypted",
    "encoded",
    "enc",
    "base64",
    "b64",
    "raw",
    "data",
    "old",
    "new",
    "current",
    "confirm",
    "confirmation",
    "again",
    "repeat",
    "header",
];

/// Names that end like a key and say where a list goes on, what a text is counted in, or which
/// request this is. A token against forged requests (`csrf_token`) is not among them: it is worth
/// something to others as long as its session lives.
pub(super) const HARMLESS: &[&str] = &[
    "pagetoken",
    "pagingtoken",
    "paginationtoken",
    "nexttoken",
    "prevtoken",
    "previoustoken",
    "continuationtoken",
    "continuetoken",
    "cursortoken",
    "offsettoken",
    "startingtoken",
    "starttoken",
    "synctoken",
    "deltatoken",
    "skiptoken",
    "resumetoken",
    "progresstoken",
    "cancellationtoken",
    "canceltoken",
    "idempotencytoken",
    "clientrequesttoken",
    "concurrencytoken",
    "maxtoken",
    "mintoken",
    "pertoken",
    "bostoken",
    "eostoken",
    "padtoken",
    "unktoken",
    "septoken",
    "clstoken",
    "masktoken",
    "stoptoken",
    "specialtoken",
    "designtoken",
];

/// What a credential, or the path of a URL that is one, begins with.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// The beginning.
    pub starts: &'static str,
    /// How many characters follow at least.
    pub least: usize,
    /// True if a digit must be among them: words begin so, too.
    pub digit: bool,
    /// True if the beginning is no secret and stays.
    pub stays: bool,
}

const fn p(starts: &'static str, least: usize) -> Prefix {
    Prefix { starts, least, digit: false, stays: false }
}

const fn digit(starts: &'static str, least: usize) -> Prefix {
    Prefix { starts, least, digit: true, stays: false }
}

const fn url(starts: &'static str) -> Prefix {
    Prefix { starts, least: 8, digit: false, stays: true }
}

/// Beginnings that credentials are known by, wherever they stand.
pub const PREFIXES: &[Prefix] = &[
    // Of mcpproxy's own agents.
    p("mcpp_", 20),
    p("ghp_", 20),
    p("gho_", 20),
    p("ghu_", 20),
    p("ghs_", 20),
    p("ghr_", 20),
    p("github_pat_", 20),
    p("glpat-", 16),
    p("glptt-", 16),
    p("gldt-", 16),
    p("glrt-", 16),
    p("glcbt-", 16),
    p("gloas-", 16),
    p("glsoat-", 16),
    p("glft-", 16),
    p("glagent-", 16),
    p("GR1348941", 16),
    digit("sk-", 20),
    p("sk-ant-", 16),
    p("sk-proj-", 16),
    p("sk-or-v1-", 16),
    p("sk_live_", 10),
    p("sk_test_", 10),
    p("sk_prod_", 10),
    p("rk_live_", 10),
    p("rk_test_", 10),
    p("rk_prod_", 10),
    p("whsec_", 16),
    p("xoxb-", 10),
    p("xoxp-", 10),
    p("xoxa-", 10),
    p("xoxr-", 10),
    p("xoxs-", 10),
    p("xoxo-", 10),
    p("xoxe-", 10),
    p("xoxe.", 10),
    p("xoxc-", 10),
    p("xoxd-", 10),
    p("xapp-", 10),
    p("AKIA", 16),
    p("ASIA", 16),
    p("ABIA", 16),
    p("ACCA", 16),
    p("AIza", 30),
    p("ya29.", 20),
    p("GOCSPX-", 20),
    p("npm_", 30),
    p("pypi-", 30),
    p("rubygems_", 30),
    digit("hf_", 30),
    p("dop_v1_", 40),
    p("doo_v1_", 40),
    p("dor_v1_", 40),
    p("shpat_", 28),
    p("shpca_", 28),
    p("shppa_", 28),
    p("shpss_", 28),
    p("lin_api_", 20),
    p("SG.", 30),
    p("xkeysib-", 32),
    p("hvs.", 20),
    p("hvb.", 20),
    p("AGE-SECRET-KEY-1", 20),
    p("ATATT3", 20),
    p("AKCp", 40),
    p("dapi", 32),
    p("dckr_pat_", 20),
    p("dt0c01.", 20),
    p("glsa_", 20),
    p("glc_", 32),
    p("gsk_", 30),
    p("HRKU-", 20),
    p("LTAI", 20),
    p("NRAK-", 20),
    p("ntn_", 20),
    p("ops_eyJ", 40),
    p("pplx-", 30),
    p("PMAK-", 30),
    p("pnu_", 30),
    p("pscale_tkn_", 20),
    p("pscale_pw_", 20),
    p("pscale_oauth_", 20),
    p("pul-", 40),
    p("r8_", 30),
    p("sgp_", 30),
    p("sha256~", 30),
    p("sntrys_", 30),
    p("sntryu_", 30),
    p("sq0atp-", 20),
    p("sq0csp-", 20),
    p("squ_", 36),
    p("sqp_", 36),
    p("tskey-", 16),
    p("fo1_", 36),
    p("fm2_", 36),
    p("figd_", 30),
    p("nfp_", 30),
    url("hooks.slack.com/services/"),
    url("hooks.slack.com/workflows/"),
    url("hooks.slack.com/triggers/"),
    url("discord.com/api/webhooks/"),
    url("discordapp.com/api/webhooks/"),
    url("webhook.office.com/webhookb2/"),
    url("hooks.zapier.com/hooks/catch/"),
    url("api.telegram.org/bot"),
];

/// A place in a text where a secret stands.
#[derive(Clone, Copy, Debug)]
pub struct SecretForm {
    /// What it is.
    pub name: &'static str,
    /// A text with a secret in it.
    pub text: &'static str,
    /// The secret.
    pub secret: &'static str,
    /// The text without it.
    pub left: &'static str,
    /// Texts that look like it and stay as they are.
    pub stay: &'static [&'static str],
}

const fn f(
    name: &'static str,
    text: &'static str,
    secret: &'static str,
    left: &'static str,
    stay: &'static [&'static str],
) -> SecretForm {
    SecretForm { name, text, secret, left, stay }
}

/// Places where secrets stand, by example.
pub const FORMS: &[SecretForm] = &[
    f(
        "JSON",
        r#"{"password":"zq9hunter","a":1}"#,
        "zq9hunter",
        r#"{"password":"[redacted]","a":1}"#,
        &[r#"{"password":null,"token":"","secret":false}"#],
    ),
    f(
        "JSON, number",
        r#"{"otp":907316,"a":1}"#,
        "907316",
        r#"{"otp":"[redacted]","a":1}"#,
        &[r#"{"max_tokens":907316}"#],
    ),
    f(
        "JSON, nested",
        r#"{"credentials":{"u":["zq9hunter",1]},"a":1}"#,
        "zq9hunter",
        r#"{"credentials":"[redacted]","a":1}"#,
        &[],
    ),
    f(
        "name, value",
        r#"[{"name":"Authorization","value":"zq9hunter"}]"#,
        "zq9hunter",
        r#"[{"name":"Authorization","value":"[redacted]"}]"#,
        &[r#"[{"name":"Accept","value":"text/html"}]"#, r#"{"name":"token","other":"x"}"#],
    ),
    f(
        "value, name",
        r#"[{"value":"zq9hunter","name":"Authorization"}]"#,
        "zq9hunter",
        r#"[{"value":"[redacted]","name":"Authorization"}]"#,
        &[r#"[{"value":"text/html","name":"Accept"}]"#, r#"{"value":[{"id":1}],"count":1}"#],
    ),
    f(
        "key, val",
        r#"{"key":"DB_PASSWORD","val":"zq9hunter"}"#,
        "zq9hunter",
        r#"{"key":"DB_PASSWORD","val":"[redacted]"}"#,
        &[r#"{"key":"DB_HOST","val":"db.example"}"#],
    ),
    f(
        "name, other, value",
        r#"{"name":"api_key","type":"string","value":"zq9hunter"}"#,
        "zq9hunter",
        r#"{"name":"api_key","type":"string","value":"[redacted]"}"#,
        &[],
    ),
    f(
        "list of values",
        r#"{"value":["zq9hunter"],"key":"cookie"}"#,
        "zq9hunter",
        r#"{"value":"[redacted]","key":"cookie"}"#,
        &[],
    ),
    f(
        "pair",
        r#"["Authorization","Token zq9hunter"]"#,
        "Token zq9hunter",
        r#"["Authorization","[redacted]"]"#,
        &[r#"["Accept","text/html"]"#, r#"{"required":["password","email"]}"#],
    ),
    f(
        "pair in a flat list",
        r#"["Host","h","Authorization","Token zq9hunter","Accept","x"]"#,
        "Token zq9hunter",
        r#"["Host","h","Authorization","[redacted]","Accept","x"]"#,
        &[r#"["user","password","email"]"#],
    ),
    f(
        "option",
        "tool --password zq9hunter run",
        "zq9hunter",
        "tool --password [redacted] run",
        &[
            "tool --page-token abc run",
            "docker login --password-stdin reg",
            "tool --no-password next",
        ],
    ),
    f(
        "option with =",
        "tool --api-key=zq9hunter run",
        "zq9hunter",
        "tool --api-key=[redacted] run",
        &["tool --max-tokens=5 run"],
    ),
    f(
        "option, quoted",
        "tool --token 'zq9 hunter' run",
        "zq9 hunter",
        "tool --token '[redacted]' run",
        &[],
    ),
    f(
        "option in a list",
        r#"["run","--password","zq9hunter","b"]"#,
        "zq9hunter",
        r#"["run","--password","[redacted]","b"]"#,
        &[r#"["run","--page-token","abc"]"#],
    ),
    f(
        "-p in a list",
        r#"["sshpass","-p","zq9hunter","ssh","h"]"#,
        "zq9hunter",
        r#"["sshpass","-p","[redacted]","ssh","h"]"#,
        &[
            r#"["mkdir","-p","some/dir"]"#,
            r#"["cargo","test","-p","crate"]"#,
            r#"["docker","run","-p","8080:80"]"#,
        ],
    ),
    f(
        "-p alone in a list",
        r#"["-p","zq9hunter"]"#,
        "zq9hunter",
        r#"["-p","[redacted]"]"#,
        &[r#"["-p","8080:80"]"#, r#"["-p","/tmp/x"]"#],
    ),
    f(
        "-p after -u",
        "tool -u bob -p zq9hunter",
        "zq9hunter",
        "tool -u bob -p [redacted]",
        &["psql -U bob -p 5432", "mkdir -p dir", "cargo build -p mine", "ssh -p 22 host"],
    ),
    f("-p alone", "-p zq9hunter", "zq9hunter", "-p [redacted]", &["-p 22"]),
    f(
        "sshpass",
        "sshpass -p zq9hunter ssh root@h",
        "zq9hunter",
        "sshpass -p [redacted] ssh root@h",
        &["sshpass -e ssh root@h"],
    ),
    f(
        "sshpass, attached",
        "sshpass -pzq9hunter ssh h",
        "zq9hunter",
        "sshpass -p[redacted] ssh h",
        &["tar -pxf a.tar"],
    ),
    f("mysql", "mysql -u root -pzq9hunter db", "zq9hunter", "mysql -u root -p[redacted] db", &[]),
    f(
        "curl -u",
        "curl -u bob:zq9hunter https://h/x",
        "zq9hunter",
        "curl -u [redacted] https://h/x",
        &["docker run -u 1000:1000 img", "systemctl -u nginx"],
    ),
    f(
        "curl -u in a list",
        r#"["curl","-u","bob:zq9hunter","https://h/"]"#,
        "zq9hunter",
        r#"["curl","-u","[redacted]","https://h/"]"#,
        &[],
    ),
    f(
        "curl --user",
        "curl --user bob:zq9hunter https://h/x",
        "zq9hunter",
        "curl --user [redacted] https://h/x",
        &["tool --user bob run"],
    ),
    f(
        "redis",
        "redis-cli -h h -a zq9hunter ping",
        "zq9hunter",
        "redis-cli -h h -a [redacted] ping",
        &["ls -a dir"],
    ),
    f(
        "docker login",
        "docker login -u bob -p zq9hunter reg",
        "zq9hunter",
        "docker login -u bob -p [redacted] reg",
        &[],
    ),
    f(
        "header",
        "Authorization: Token zq9hunter",
        "zq9hunter",
        "Authorization: Token [redacted]",
        &["Content-Type: text/html"],
    ),
    f(
        "header in a command",
        "curl -H 'Authorization: token zq9hunter' https://h/",
        "zq9hunter",
        "curl -H 'Authorization: token [redacted]' https://h/",
        &["curl -H 'Accept: text/html' https://h/"],
    ),
    f("cookie header", "Cookie: theme=x1; sid=zq9hunter", "zq9hunter", "Cookie: [redacted]", &[]),
    f(
        "Bearer",
        "got Bearer zq9hunterhunter",
        "zq9hunterhunter",
        "got Bearer [redacted]",
        &["basic authentication failed; the bearer of news"],
    ),
    f(
        "Basic",
        "got Basic enE5aHVudGVyOng=",
        "enE5aHVudGVyOng=",
        "got Basic [redacted]",
        &["basic auth"],
    ),
    f(
        "environment",
        "API_KEY=zq9hunter\nX=1",
        "zq9hunter",
        "API_KEY=[redacted]\nX=1",
        &["MAX_TOKENS=100\nX=1"],
    ),
    f(
        "environment, odd characters",
        "export DB_PASSWORD=zq9,hun)ter\nX=1",
        "zq9,hun)ter",
        "export DB_PASSWORD=[redacted]\nX=1",
        &[],
    ),
    f(
        "connection string",
        "Server=h;AccountKey=zq9hunter==;Database=d",
        "zq9hunter==",
        "Server=h;AccountKey=[redacted];Database=d",
        &[],
    ),
    f(
        "Python",
        "{'password': 'zq9hunter', 'a': 1}",
        "zq9hunter",
        "{'password': '[redacted]', 'a': 1}",
        &["{'tokens': 'abc'}"],
    ),
    f(
        "Ruby, PHP",
        "x = ['secret' => 'zq9hunter']",
        "zq9hunter",
        "x = ['secret' => '[redacted]']",
        &[],
    ),
    f(
        "form",
        "user[password]=zq9hunter&a=1",
        "zq9hunter",
        "user[password]=[redacted]&a=1",
        &["user[name]=bob&a=1"],
    ),
    f(
        "Markdown",
        "**Password:** zq9hunter",
        "zq9hunter",
        "**Password:** [redacted]",
        &["PASS: test_of_something", "Token::new(abc)"],
    ),
    f(
        "SQL",
        "ALTER USER bob WITH PASSWORD 'zq9hunter';",
        "zq9hunter",
        "ALTER USER bob WITH PASSWORD '[redacted]';",
        &["SELECT password FROM users"],
    ),
    f(
        "SQL, identified by",
        "CREATE USER bob IDENTIFIED BY 'zq9hunter';",
        "zq9hunter",
        "CREATE USER bob IDENTIFIED BY '[redacted]';",
        &[],
    ),
    f(
        "YAML",
        "db:\n  password: zq9 hunter\n  port: 5",
        "zq9 hunter",
        "db:\n  password: [redacted]\n  port: 5",
        &["secret:\n  name: x\n"],
    ),
    f(
        "YAML, below another",
        "credentials:\n  password: zq9hunter\n  port: 5",
        "zq9hunter",
        "credentials:\n  password: [redacted]\n  port: 5",
        &[],
    ),
    f(
        "YAML block",
        "password: |\n  zq9hunter\n  more \"x\"\nport: 5",
        "zq9hunter\n  more \"x\"",
        "password: [redacted]\nport: 5",
        &["text: |\n  hello\nport: 5"],
    ),
    f(
        "YAML folded",
        "  secret: >-\n    zq9hunter\n\n    more\n  port: 5",
        "zq9hunter\n\n    more",
        "  secret: [redacted]\n  port: 5",
        &[],
    ),
    f(
        "XML",
        "<db><password>zq9hunter</password></db>",
        "zq9hunter",
        "<db><password>[redacted]</password></db>",
        &["Usage: tool <token> <file>", "<passwordPolicy>strong</passwordPolicy>"],
    ),
    f(
        "XML, attributes",
        "<w:Password Type=\"x\">zq9\"hunter</w:Password>",
        "zq9\"hunter",
        "<w:Password Type=\"x\">[redacted]</w:Password>",
        &[],
    ),
    f(
        "XML, CDATA",
        "<secret><![CDATA[zq9<hunter]]></secret>",
        "zq9<hunter",
        "<secret>[redacted]</secret>",
        &[],
    ),
    f(
        "XML attribute",
        "<db user=\"bob\" password=\"zq9hunter\"/>",
        "zq9hunter",
        "<db user=\"bob\" password=\"[redacted]\"/>",
        &[],
    ),
    f(
        "XML attribute, single",
        "<db password='zq9hunter'/>",
        "zq9hunter",
        "<db password='[redacted]'/>",
        &[],
    ),
    f(
        "XML pair",
        "<add key=\"DbPassword\" value=\"zq9hunter\"/>",
        "zq9hunter",
        "<add key=\"DbPassword\" value=\"[redacted]\"/>",
        &["<add key=\"DbHost\" value=\"h\"/>"],
    ),
    f(
        "user and password in a URL",
        "postgres://me:zq9hunter@host/db",
        "zq9hunter",
        "postgres://me:[redacted]@host/db",
        &["http://host:8080/a@b", "https://h?mail=a@b", "see https://h/@scope/x"],
    ),
    f(
        "token in a URL",
        "git clone https://zq9hunter@host/x",
        "zq9hunter",
        "git clone https://[redacted]@host/x",
        &["ssh://git@host/x", "git@host:x"],
    ),
    f(
        "token and nothing in a URL",
        "https://zq9hunter:x-oauth-basic@host/x",
        "zq9hunter:x-oauth-basic",
        "https://[redacted]@host/x",
        &[],
    ),
    f(
        "query",
        "https://h/p?api_key=zq9hunter&x=1",
        "zq9hunter",
        "https://h/p?api_key=[redacted]&x=1",
        &["https://h/p?pageToken=abc&x=1"],
    ),
    f(
        "signed URL, AWS",
        "https://h/p?X-Amz-Date=1&X-Amz-Signature=zq9hunter",
        "zq9hunter",
        "https://h/p?X-Amz-Date=1&X-Amz-Signature=[redacted]",
        &["https://h/p?X-Amz-Date=1"],
    ),
    f(
        "signed URL, Azure",
        "https://h/p?sv=1&sig=zq9%2Bhunter&se=2",
        "zq9%2Bhunter",
        "https://h/p?sv=1&sig=[redacted]&se=2",
        &["https://h/p?config=abc"],
    ),
    f(
        "signed URL",
        "https://h/p?Expires=1&Signature=zq9hunter",
        "zq9hunter",
        "https://h/p?Expires=1&Signature=[redacted]",
        &["Signature = fn(a) -> b"],
    ),
    f(
        "private key",
        "-----BEGIN RSA PRIVATE KEY-----\nzq9hunter\n-----END RSA PRIVATE KEY-----\nx",
        "zq9hunter",
        "[redacted]\nx",
        &["-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"],
    ),
    f(
        "JWT",
        "see eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3 there",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3",
        "see [redacted] there",
        &["eyJpZCI6MTIzNDU2Nzg5LCJvZmZzZXQiOjEwMH0"],
    ),
    f(
        "JSON in base64",
        "x eyJ1c2VyIjoiYm9iIiwicGFzc3dvcmQiOiJ6cTlodW50ZXIifQ== y",
        "eyJ1c2VyIjoiYm9iIiwicGFzc3dvcmQiOiJ6cTlodW50ZXIifQ==",
        "x [redacted] y",
        &[
            "cursor eyJpZCI6MTIzNDU2Nzg5LCJvZmZzZXQiOjEwMH0=",
            "cursor eyJsYXN0IjoiYWJjIiwicGFnZVRva2VuIjoiYWJjIn0=",
        ],
    ),
    f(
        "JSON list in base64",
        "x W3sidG9rZW4iOiJ6cTlodW50ZXIifV0= y",
        "W3sidG9rZW4iOiJ6cTlodW50ZXIifV0=",
        "x [redacted] y",
        &[],
    ),
];

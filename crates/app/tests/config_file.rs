//! Every field of the configuration file: its default, a given value, `null`, the wrong type; what is refused and
//! how; what is written back.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferry_app::config::{
    ApiClient, DetectLocal, NodePortAddresses, Settings, Source, configz, decode, to_yaml,
    values::GoDuration,
    written::{Config, Pace},
};
use ferry_sources::kube::Encoding;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// The file with one field set, a dotted path given.
fn with(path: &str, value: &str) -> String {
    let mut text = HEAD.to_owned();
    for (depth, part) in path.split('.').enumerate() {
        text.push_str(&format!("{}{part}:", "  ".repeat(depth)));
        text.push_str(if path.ends_with(part) && path.split('.').count() == depth + 1 {
            " "
        } else {
            "\n"
        });
    }
    text + value + "\n"
}

fn config(text: &str) -> Config {
    let decoded = decode(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(decoded.strict_error, None, "{text}");
    decoded.config
}

/// What `/configz` shows for a field, a dotted path given.
fn shown(config: &Config, path: &str) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_str(&configz(config)).unwrap();
    let mut value = &all["kubeproxy.config.k8s.io"];
    for part in path.split('.') {
        value = &value[part];
    }
    value.clone()
}

/// Path, default as `/configz` shows it, a value as written, that value as shown, a value of the wrong type with
/// the Go type that the message names and what kind of value it was.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    (&'static str, &'static str, &'static str),
);

const STRING: (&str, &str, &str) = ("5", "number", "string");
const BOOL: (&str, &str, &str) = ("5", "number", "bool");
const INT: (&str, &str, &str) = ("x", "string", "int32");

const FIELDS: &[Row] = &[
    (
        "featureGates",
        "null",
        "{A: true}",
        r#"{"A":true}"#,
        ("5", "number 5", "map[string]bool"),
    ),
    ("clientConnection.kubeconfig", r#""""#, "/k", r#""/k""#, STRING),
    (
        "clientConnection.acceptContentTypes",
        r#""""#,
        "a/b",
        r#""a/b""#,
        STRING,
    ),
    (
        "clientConnection.contentType",
        r#""application/vnd.kubernetes.protobuf""#,
        "a/b",
        r#""a/b""#,
        STRING,
    ),
    (
        "clientConnection.qps",
        "5",
        "0.5",
        "0.5",
        ("x", "string", "float32"),
    ),
    ("clientConnection.burst", "10", "11", "11", INT),
    ("logging.format", r#""text""#, "json", r#""json""#, STRING),
    (
        "logging.flushFrequency",
        r#""5s""#,
        "7s",
        r#""7s""#,
        ("{}", "object", "int64"),
    ),
    (
        "logging.verbosity",
        "0",
        "3",
        "3",
        ("x", "string", "v1.VerbosityLevel"),
    ),
    (
        "logging.vmodule",
        "null",
        "[{filePattern: a*, verbosity: 2}]",
        r#"[{"filePattern":"a*","verbosity":2}]"#,
        ("[5]", "number 5", "VModuleItem"),
    ),
    ("logging.options.text.splitStream", "null", "true", "true", BOOL),
    ("logging.options.json.splitStream", "null", "true", "true", BOOL),
    (
        "logging.options.text.infoBufferSize",
        r#""0""#,
        "1Ki",
        r#""1Ki""#,
        ("true", "bool", "resource.Quantity"),
    ),
    (
        "logging.options.json.infoBufferSize",
        r#""0""#,
        "2000",
        r#""2k""#,
        ("[]", "array", "resource.Quantity"),
    ),
    ("hostnameOverride", r#""""#, "name", r#""name""#, STRING),
    ("bindAddress", r#""0.0.0.0""#, "1.2.3.4", r#""1.2.3.4""#, STRING),
    (
        "healthzBindAddress",
        r#""0.0.0.0:10256""#,
        "1.2.3.4",
        r#""1.2.3.4:10256""#,
        STRING,
    ),
    (
        "metricsBindAddress",
        r#""127.0.0.1:10249""#,
        "\"[::]:1\"",
        r#""[::]:1""#,
        STRING,
    ),
    ("bindAddressHardFail", "false", "true", "true", BOOL),
    ("enableProfiling", "false", "true", "true", BOOL),
    (
        "showHiddenMetricsForVersion",
        r#""""#,
        "\"1.35\"",
        r#""1.35""#,
        STRING,
    ),
    ("mode", r#""""#, "iptables", r#""iptables""#, STRING),
    ("iptables.masqueradeBit", "14", "0", "0", INT),
    ("iptables.masqueradeAll", "false", "true", "true", BOOL),
    ("iptables.localhostNodePorts", "true", "false", "false", BOOL),
    ("iptables.syncPeriod", r#""30s""#, "1m", r#""1m0s""#, STRING),
    ("iptables.minSyncPeriod", r#""1s""#, "2s", r#""2s""#, STRING),
    ("ipvs.scheduler", r#""""#, "sh", r#""sh""#, STRING),
    (
        "ipvs.excludeCIDRs",
        "null",
        "[10.0.0.0/8]",
        r#"["10.0.0.0/8"]"#,
        ("x", "string", "[]string"),
    ),
    ("ipvs.strictARP", "false", "true", "true", BOOL),
    ("ipvs.tcpTimeout", r#""0s""#, "5s", r#""5s""#, STRING),
    ("ipvs.tcpFinTimeout", r#""0s""#, "5s", r#""5s""#, STRING),
    ("ipvs.udpTimeout", r#""0s""#, "5s", r#""5s""#, STRING),
    ("nftables.masqueradeBit", "14", "0", "0", INT),
    ("winkernel.networkName", r#""""#, "name", r#""name""#, STRING),
    ("winkernel.sourceVip", r#""""#, "name", r#""name""#, STRING),
    (
        "winkernel.rootHnsEndpointName",
        r#""""#,
        "name",
        r#""name""#,
        STRING,
    ),
    ("winkernel.enableDSR", "false", "true", "true", BOOL),
    ("winkernel.forwardHealthCheckVip", "false", "true", "true", BOOL),
    ("detectLocalMode", r#""""#, "NodeCIDR", r#""NodeCIDR""#, STRING),
    ("detectLocal.bridgeInterface", r#""""#, "b", r#""b""#, STRING),
    ("detectLocal.interfaceNamePrefix", r#""""#, "b", r#""b""#, STRING),
    (
        "clusterCIDR",
        r#""""#,
        "10.0.0.0/8,fd00::/8",
        r#""10.0.0.0/8,fd00::/8""#,
        STRING,
    ),
    (
        "nodePortAddresses",
        "null",
        "[primary]",
        r#"["primary"]"#,
        ("[5]", "number", "string"),
    ),
    ("oomScoreAdj", "-999", "0", "0", INT),
    ("conntrack.maxPerCore", "32768", "0", "0", INT),
    ("conntrack.min", "131072", "0", "0", INT),
    (
        "conntrack.tcpEstablishedTimeout",
        r#""24h0m0s""#,
        "0s",
        r#""0s""#,
        STRING,
    ),
    (
        "conntrack.tcpCloseWaitTimeout",
        r#""1h0m0s""#,
        "0s",
        r#""0s""#,
        STRING,
    ),
    ("conntrack.tcpBeLiberal", "false", "true", "true", BOOL),
    ("conntrack.udpTimeout", r#""0s""#, "5s", r#""5s""#, STRING),
    ("conntrack.udpStreamTimeout", r#""0s""#, "5s", r#""5s""#, STRING),
    ("configSyncPeriod", r#""15m0s""#, "1m", r#""1m0s""#, STRING),
    ("portRange", r#""""#, "1-2", r#""""#, STRING),
    ("windowsRunAsService", "null", "true", "true", BOOL),
    ("ferry.manifests", "null", "/m", r#""/m""#, STRING),
    ("ferry.statusSocket", "null", "/s", r#""/s""#, STRING),
    ("ferry.trafficCounters", "null", "true", "true", BOOL),
    ("ferry.holdNodePorts", "null", "true", "true", BOOL),
    ("ferry.kubeProxyRules", "null", "true", "true", BOOL),
    ("ferry.nftables.fastPath", "null", "true", "true", BOOL),
    ("ferry.nftables.localhostNodePorts", "null", "true", "true", BOOL),
    ("ferry.userspace.bind", "null", "true", "true", BOOL),
    ("ferry.userspace.portRange", "null", "1-2", r#""1-2""#, STRING),
    ("ferry.userspace.udpTimeout", "null", "1s", r#""1s""#, STRING),
];

#[test]
fn every_field_has_its_default_takes_a_value_and_may_be_null() {
    let defaults = config(HEAD);
    for (path, default, value, seen, _) in FIELDS {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(shown(&defaults, path), parse(default), "{path} by default");
        assert_eq!(
            shown(&config(&with(path, value)), path),
            parse(seen),
            "{path}: {value}"
        );
        assert_eq!(config(&with(path, "null")), defaults, "{path}: null");
    }
}

#[test]
fn every_field_refuses_the_wrong_type_with_its_line() {
    for (path, _, _, _, (value, got, go_type)) in FIELDS {
        let error = decode(&with(path, value), None).unwrap_err();
        let depth = path.split('.').count();
        assert!(
            error
                .message
                .contains(&format!("json: cannot unmarshal {got} into Go struct field ")),
            "{error}"
        );
        assert!(
            error.message.ends_with(&format!("{path} of type {go_type}")),
            "{path}: {error}"
        );
        assert_eq!(error.line, Some(2 + depth), "{path}: {error}");
    }
}

#[test]
fn messages_name_gos_types() {
    for (path, value, message) in [
        (
            "iptables.masqueradeBit",
            "x",
            "json: cannot unmarshal string into Go struct field KubeProxyIPTablesConfiguration.iptables.masqueradeBit of type int32",
        ),
        (
            "configSyncPeriod",
            "5",
            "json: cannot unmarshal number into Go struct field KubeProxyConfiguration.configSyncPeriod of type string",
        ),
        (
            "configSyncPeriod",
            "5x",
            r#"time: unknown unit "x" in duration "5x""#,
        ),
        (
            "oomScoreAdj",
            "1.5",
            "json: cannot unmarshal number 1.5 into Go struct field KubeProxyConfiguration.oomScoreAdj of type int32",
        ),
        (
            "logging.options.text.infoBufferSize",
            "x",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ] {
        assert_eq!(decode(&with(path, value), None).unwrap_err().message, message);
    }
}

#[test]
fn files_that_are_something_else_are_refused() {
    let long = format!("a: {}\n", "x".repeat(1000));
    for (text, message) in [
        ("", "Object 'Kind' is missing in ''".to_owned()),
        ("apiVersion: v1\n", "Object 'Kind' is missing in 'apiVersion: v1\n'".to_owned()),
        (&long, format!("Object 'Kind' is missing in '{}...'", &long[..400])),
        ("kind: X\n", "Object 'apiVersion' is missing in 'kind: X\n'".to_owned()),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
            "no kind \"KubeProxyConfiguration\" is registered for version \"kubeproxy.config.k8s.io/v1beta1\" in scheme \"ferry\"".to_owned(),
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Other\n",
            "no kind \"Other\" is registered for version \"kubeproxy.config.k8s.io/v1alpha1\" in scheme \"ferry\"".to_owned(),
        ),
        ("[1, 2]\n", "couldn't get version/kind; json parse error: the document is not an object".to_owned()),
    ] {
        assert_eq!(decode(text, None).unwrap_err().message, message);
    }
    let broken = decode("a: [1,\nb: 2\n}\n", None).unwrap_err();
    assert!(broken.message.starts_with("yaml: line "), "{broken}");
}

#[test]
fn unknown_and_repeated_fields_are_tolerated_with_a_reason() {
    let text = format!("{HEAD}foo: 1\niptables:\n  bar: 2\n  masqueradeBit: 3\nmode: ipvs\nmode: nftables\n");
    let decoded = decode(&text, None).unwrap();
    assert_eq!(decoded.config.mode, "nftables", "the last one counts");
    assert_eq!(decoded.config.iptables.masquerade_bit, 3);
    let (why, lines) = decoded.strict_error.unwrap();
    assert_eq!(
        why,
        "strict decoding error: yaml: unmarshal errors:\n  line 8: key \"mode\" already set in map, \
         unknown field \"foo\", unknown field \"iptables.bar\""
    );
    assert_eq!(lines, [8, 3, 5]);
    let nested = format!("{HEAD}logging: {{vmodule: [{{}}, {{foo: 1}}]}}\n");
    assert_eq!(
        decode(&nested, None).unwrap().strict_error.unwrap().0,
        "strict decoding error: unknown field \"logging.vmodule[1].foo\""
    );
    let json = r#"{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"a","mode":"b","Mode":"c"}"#;
    let (why, _) = decode(json, None).unwrap().strict_error.unwrap();
    assert_eq!(
        why,
        r#"strict decoding error: duplicate field "mode", unknown field "Mode""#
    );
}

#[test]
fn only_the_first_document_counts() {
    let text = format!("---\n{HEAD}mode: ipvs\n---\n{HEAD}mode: nftables\nbroken: [\n");
    assert_eq!(config(&text).mode, "ipvs");
}

#[test]
fn json_files_are_files_too() {
    let text = r#"{
	"kind": "KubeProxyConfiguration",
	"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
	"mode": "nftables", "nftables": {"syncPeriod": "10s"}
}"#;
    assert_eq!(config(text).pace().sync_period, GoDuration::from_secs(10));
}

#[test]
fn json_is_one_object_and_nothing_else() {
    let good = r#"{"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1"}"#;
    assert_eq!(config(good), Config::default());
    assert_eq!(config(&format!("\n\t {good}\n \n")), Config::default());
    for bad in [
        format!("{good} garbage"),
        format!("{good}\n{good}"),
        format!("{good}\n---\n{good}"),
        good.replace('}', ",}"),
        good.replace('"', ""),
        good.replace('"', "'"),
        good.replace('}', ""),
        format!("{good}# a comment"),
    ] {
        let error = decode(&bad, None).unwrap_err();
        assert!(
            error
                .message
                .starts_with("couldn't get version/kind; json parse error: "),
            "{bad}: {error}"
        );
        assert!(error.line.is_some(), "{bad}");
    }
}

#[test]
fn sync_settings_come_from_the_section_of_the_mode() {
    let sections = "iptables: {syncPeriod: 11s, minSyncPeriod: 1s, masqueradeAll: true}\n\
                    ipvs: {syncPeriod: 12s, minSyncPeriod: 2s}\n\
                    nftables: {syncPeriod: 13s, minSyncPeriod: 3s, masqueradeAll: false}\n";
    for (mode, sync, min, all) in [
        ("", 11, 1, true),
        ("iptables", 11, 1, true),
        ("userspace", 11, 1, true),
        ("ipvs", 12, 2, true),
        ("nftables", 13, 3, false),
    ] {
        let config = config(&format!("{HEAD}mode: \"{mode}\"\n{sections}"));
        assert_eq!(
            config.pace(),
            Pace {
                sync_period: GoDuration::from_secs(sync),
                min_sync_period: GoDuration::from_secs(min),
                masquerade_all: all
            },
            "{mode}"
        );
        let active = match mode {
            "ipvs" | "nftables" => mode,
            _ => "iptables",
        };
        for section in ["iptables", "ipvs", "nftables"] {
            let expected = if section == active {
                format!("{sync}s")
            } else {
                "0s".to_owned()
            };
            assert_eq!(
                shown(&config, &format!("{section}.syncPeriod")),
                expected,
                "{mode}: {section}"
            );
        }
    }
    assert_eq!(
        config(&format!("{HEAD}mode: ipvs\n")).pace().min_sync_period,
        GoDuration::ZERO
    );
    assert_eq!(
        config(&format!("{HEAD}mode: nftables\n")).pace().min_sync_period,
        GoDuration::from_secs(1)
    );
}

#[test]
fn servers_follow_the_family_of_the_bind_address() {
    for (bind, healthz, metrics) in [
        ("0.0.0.0", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("10.0.0.1", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("\"::\"", "[::]:10256", "[::1]:10249"),
        ("fd00::1", "[::]:10256", "[::1]:10249"),
    ] {
        let config = config(&with("bindAddress", bind));
        assert_eq!(
            (
                config.healthz_bind_address.as_str(),
                config.metrics_bind_address.as_str()
            ),
            (healthz, metrics)
        );
    }
}

#[test]
fn zero_means_the_default_except_where_it_says_leave_it() {
    let text = format!(
        "{HEAD}clientConnection: {{qps: 0, burst: 0, contentType: \"\"}}\nconfigSyncPeriod: 0s\n\
         iptables: {{syncPeriod: 0s, minSyncPeriod: 0s, masqueradeBit: 0}}\n\
         conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s}}\nlogging: {{format: \"\", flushFrequency: 0s}}\n"
    );
    let (zero, default) = (config(&text), Config::default());
    assert_eq!(zero.client, default.client);
    assert_eq!(zero.logging, default.logging);
    assert_eq!(zero.pace(), default.pace());
    assert_eq!(zero.config_sync_period, default.config_sync_period);
    assert_eq!(
        (
            zero.iptables.masquerade_bit,
            zero.conntrack.max_per_core,
            zero.conntrack.min
        ),
        (0, 0, 0)
    );
    assert_eq!(zero.conntrack.tcp_established_timeout, GoDuration::ZERO);
}

#[test]
fn flush_frequency_is_written_in_the_form_it_was_read() {
    let flush = |value: &str| {
        shown(
            &config(&with("logging.flushFrequency", value)),
            "logging.flushFrequency",
        )
    };
    assert_eq!(flush("0"), "5s");
    assert_eq!(flush("3s"), "3s");
    assert_eq!(flush("3000000000"), 3_000_000_000_i64);
}

#[test]
fn the_old_userspace_fields_count_in_userspace_mode() {
    let text = format!("{HEAD}mode: userspace\nportRange: 300-400\nudpIdleTimeout: 2s\n");
    let settings = config(&text).ferry.userspace;
    assert_eq!(
        (settings.port_range.as_str(), settings.udp_timeout),
        ("300-400", GoDuration::from_secs(2))
    );
    let ours = format!("{text}ferry: {{userspace: {{portRange: 500-600}}}}\n");
    assert_eq!(config(&ours).ferry.userspace.port_range, "500-600");
    let other = decode(&format!("{HEAD}portRange: 300-400\nudpIdleTimeout: 2s\n"), None).unwrap();
    assert_eq!(other.config, Config::default());
    assert!(
        other
            .strict_error
            .unwrap()
            .0
            .contains("unknown field \"udpIdleTimeout\"")
    );
}

#[test]
fn objects_are_asked_for_as_client_go_would() {
    let protobuf = "application/vnd.kubernetes.protobuf";
    for (content_type, accept, expected) in [
        ("", "", Encoding::Protobuf),
        ("application/json", "", Encoding::Json),
        ("application/json", protobuf, Encoding::Protobuf),
        (protobuf, "application/json", Encoding::Json),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let client = format!("{{contentType: \"{content_type}\", acceptContentTypes: \"{accept}\"}}");
        std::fs::write(file.path(), format!("{HEAD}clientConnection: {client}\n")).unwrap();
        let settings = Settings::from_args(&["--config", file.path().to_str().unwrap()]).unwrap();
        let Source::Api(client) = settings.source else {
            panic!("{:?}", settings.source)
        };
        assert_eq!(client.encoding, expected, "{content_type:?}, {accept:?}");
    }
}

#[test]
fn kubeadms_config_map_works_unchanged() {
    let settings = Settings::from_args(&["--config", "tests/data/kubeadm.conf"]).unwrap();
    assert_eq!(settings.mode.name, "iptables");
    assert_eq!(
        settings.source,
        Source::Api(ApiClient {
            kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
            master: None,
            qps: Some(5.0),
            burst: 10,
            encoding: Encoding::Protobuf,
        })
    );
    assert_eq!(
        settings.detect_local,
        DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()])
    );
    assert_eq!(settings.node_port_addresses, NodePortAddresses::All);
    assert_eq!(
        (settings.sync_period.as_secs(), settings.min_sync_period.as_secs()),
        (30, 1)
    );
    assert_eq!(
        (settings.iptables.masquerade_bit, settings.oom_score_adj),
        (14, -999)
    );
    assert_eq!(
        (settings.conntrack.max_per_core, settings.conntrack.min),
        (32768, 131072)
    );
    assert!(settings.iptables.localhost_node_ports);
    let text = std::fs::read_to_string("tests/data/kubeadm.conf").unwrap();
    let decoded = decode(&text, None).unwrap();
    assert_eq!(decoded.strict_error, None);
    let expected = Config {
        client: ferry_app::config::written::Client {
            kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf".to_owned(),
            ..Config::default().client
        },
        cluster_cidrs: vec!["10.244.0.0/16".to_owned()],
        ..Config::default()
    };
    assert_eq!(decoded.config, expected);
}

#[test]
fn what_is_written_is_read_back_the_same() {
    for (path, _, value, _, _) in FIELDS {
        let before = config(&with(path, value));
        let after = config(&to_yaml(&before));
        assert_eq!(after, before, "{path}: {value}\n{}", to_yaml(&before));
        let json: String = configz(&before);
        let inner = json
            .strip_prefix("{\"kubeproxy.config.k8s.io\":")
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap();
        assert_eq!(config(inner), before, "{path} as JSON");
    }
}

#[test]
fn configz_has_the_order_of_kube_proxys_type() {
    let json = configz(&config(&format!(
        "{HEAD}featureGates: {{B: true, A: false}}\nlogging: {{vmodule: [{{filePattern: x, verbosity: 1}}]}}\n"
    )));
    insta::assert_snapshot!(json);
}

#[test]
fn nftables_mode_answers_node_ports_on_primary_addresses() {
    let settings = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        std::fs::write(&path, text).unwrap();
        Settings::from_args(&["--config", path.to_str().unwrap()]).unwrap()
    };
    for list in ["null", "[]"] {
        let text = format!("{HEAD}mode: nftables\nnodePortAddresses: {list}\n");
        assert_eq!(settings(&text).node_port_addresses, NodePortAddresses::Primary);
    }
    let cidrs = settings(&format!(
        "{HEAD}mode: nftables\nnodePortAddresses: [10.1.2.3/8, \"::/0\"]\n"
    ));
    assert_eq!(
        cidrs.node_port_addresses,
        NodePortAddresses::Cidrs(vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()])
    );
    assert_eq!(settings(HEAD).node_port_addresses, NodePortAddresses::All);
    let bits = settings(&format!("{HEAD}mode: nftables\nnftables: {{masqueradeBit: 3}}\n"));
    assert_eq!(bits.nftables.masquerade_bit, 3);
}

#[test]
fn the_fuzzing_door_takes_files_and_garbage() {
    for text in [
        include_str!("data/kubeadm.conf"),
        HEAD,
        "",
        "{",
        "\u{0}",
        "? a\n: b\n",
        "&a [*a]",
    ] {
        ferry_app::config::fuzz_config(text.as_bytes());
    }
    for row in FIELDS {
        ferry_app::config::fuzz_config(with(row.0, row.2).as_bytes());
    }
    ferry_app::config::fuzz_config(&[0xff, 0xfe]);
}

/// A few thousand damaged files, the same ones every time; `cargo xtask fuzz config` goes further.
#[test]
fn damaged_files_are_refused_or_read_but_never_a_surprise() {
    let seeds = [
        include_bytes!("data/kubeadm.conf").as_slice(),
        include_bytes!("../../../fuzz/corpus/config/full.yaml"),
        include_bytes!("../../../fuzz/corpus/config/json.json"),
    ];
    const MARKS: &[u8] = b"0-:{}[]&*!|>'\"%@`~ \n\t#,?<=9e.";
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for round in 0..2000 {
        let mut data = seeds[round % seeds.len()].to_vec();
        for _ in 0..=random(4) {
            let (at, donor) = (random(data.len()), seeds[random(seeds.len())]);
            match random(4) {
                0 => data[at] = MARKS[random(MARKS.len())],
                1 => drop(data.drain(at..(at + random(30)).min(data.len()))),
                2 => data.insert(at, random(256) as u8),
                _ => {
                    let from = random(donor.len());
                    let piece = donor[from..(from + random(60)).min(donor.len())].to_vec();
                    drop(data.splice(at..at, piece));
                }
            }
        }
        ferry_app::config::fuzz_config(&data);
    }
}

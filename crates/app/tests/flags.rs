//! Every flag: that it exists, its default, how it is read and refused, and what becomes of it beside `--config`.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferry_app::cli::flags::{self, FLAGS, Flag, Typed};
use ferry_app::config::{self, Level, Settings};

/// Name, default as shown, a value to give, that value as shown, whether it counts with `--config`.
type Row = (&'static str, &'static str, &'static str, &'static str, bool);

/// kube-proxy 1.36's flags on Linux.
const KUBE_PROXY: &[Row] = &[
    ("config", "", "/c", "/c", true),
    ("write-config-to", "", "/w", "/w", true),
    ("cleanup", "false", "true", "true", true),
    ("init-only", "false", "T", "true", true),
    ("master", "", "http://m", "http://m", true),
    ("hostname-override", "", " Node-1 ", " Node-1 ", true),
    ("version", "false", "raw", "raw", true),
    ("help", "false", "false", "false", true),
    ("v", "0", "4", "4", true),
    ("vmodule", "", "a=1,b*=2,", "a=1,b*=2", true),
    ("logging-format", "text", "json", "json", true),
    ("log-flush-frequency", "5s", "1m", "1m0s", true),
    ("log-text-split-stream", "false", "1", "true", true),
    ("log-json-split-stream", "false", "1", "true", true),
    ("log-text-info-buffer-size", "0", "1024Ki", "1Mi", true),
    ("log-json-info-buffer-size", "0", "1000", "1k", true),
    (
        "boot-id-file",
        "/proc/sys/kernel/random/boot_id",
        "/b",
        "/b",
        false,
    ),
    (
        "machine-id-file",
        "/etc/machine-id,/var/lib/dbus/machine-id",
        "/m",
        "/m",
        false,
    ),
    ("feature-gates", "", "B=false, A =true", "A=true,B=false", false),
    ("kubeconfig", "", "/k", "/k", false),
    (
        "kube-api-content-type",
        "application/vnd.kubernetes.protobuf",
        "application/json",
        "application/json",
        false,
    ),
    ("kube-api-burst", "10", "0x20", "32", false),
    ("kube-api-qps", "5", "2.5", "2.5", false),
    ("bind-address", "0.0.0.0", "::1", "::1", false),
    (
        "healthz-bind-address",
        "0.0.0.0:10256",
        "1.2.3.4",
        "1.2.3.4",
        false,
    ),
    (
        "metrics-bind-address",
        "127.0.0.1:10249",
        "[::]:1",
        "[::]:1",
        false,
    ),
    ("healthz-port", "10256", "1", "1", false),
    ("metrics-port", "10249", "2", "2", false),
    ("bind-address-hard-fail", "false", "true", "true", false),
    ("profiling", "false", "true", "true", false),
    ("show-hidden-metrics-for-version", "", "1.35", "1.35", false),
    ("proxy-mode", "", "nftables", "nftables", false),
    ("iptables-masquerade-bit", "14", "31", "31", false),
    ("masquerade-all", "false", "true", "true", false),
    ("iptables-localhost-nodeports", "true", "false", "false", false),
    ("iptables-sync-period", "30s", "1h", "1h0m0s", false),
    ("iptables-min-sync-period", "1s", "0", "0s", false),
    ("ipvs-sync-period", "30s", "1h", "1h0m0s", false),
    ("ipvs-min-sync-period", "1s", "0", "0s", false),
    ("ipvs-scheduler", "", "sh", "sh", false),
    (
        "ipvs-exclude-cidrs",
        "[]",
        "10.0.0.0/8,fd00::/8",
        "[10.0.0.0/8,fd00::/8]",
        false,
    ),
    ("ipvs-strict-arp", "false", "true", "true", false),
    ("ipvs-tcp-timeout", "0s", "5s", "5s", false),
    ("ipvs-tcpfin-timeout", "0s", "5s", "5s", false),
    ("ipvs-udp-timeout", "0s", "5s", "5s", false),
    ("detect-local-mode", "", "NodeCIDR", "NodeCIDR", false),
    ("pod-bridge-interface", "", "br0", "br0", false),
    ("pod-interface-name-prefix", "", "veth", "veth", false),
    ("cluster-cidr", "", "10.0.0.0/8", "10.0.0.0/8", false),
    ("nodeport-addresses", "[]", "primary", "[primary]", false),
    ("oom-score-adj", "-999", "-1", "-1", false),
    ("conntrack-max-per-core", "32768", "0", "0", false),
    ("conntrack-min", "131072", "1", "1", false),
    ("conntrack-tcp-timeout-established", "24h0m0s", "0s", "0s", false),
    ("conntrack-tcp-timeout-close-wait", "1h0m0s", "0s", "0s", false),
    ("conntrack-tcp-be-liberal", "false", "true", "true", false),
    ("conntrack-udp-timeout", "0s", "1s", "1s", false),
    ("conntrack-udp-timeout-stream", "0s", "1s", "1s", false),
    ("config-sync-period", "15m0s", "1m", "1m0s", false),
];

/// What kube-proxy does not have.
const OURS: &[Row] = &[
    ("manifests", "", "/d", "/d", true),
    ("status-socket", "/run/ferry/ferry.sock", "/s", "/s", true),
    ("traffic-counters", "false", "true", "true", true),
    ("hold-node-ports", "false", "true", "true", true),
    ("kube-proxy-rules", "false", "true", "true", true),
    ("nftables-fast-path", "false", "true", "true", true),
    ("nftables-localhost-nodeports", "false", "true", "true", true),
    ("userspace-bind", "false", "true", "true", true),
    ("proxy-port-range", "", "300-400", "300-400", true),
    ("udp-timeout", "250ms", "1s", "1s", true),
];

fn rows() -> impl Iterator<Item = &'static Row> {
    KUBE_PROXY.iter().chain(OURS)
}

fn find(name: &str) -> &'static Flag {
    FLAGS
        .iter()
        .find(|flag| flag.name == name)
        .unwrap_or_else(|| panic!("no flag --{name}"))
}

fn parse(args: &[&str]) -> Result<(Typed, flags::Rest), String> {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let mut typed = Typed::default();
    let rest = flags::parse(&[FLAGS], &args, &mut typed).map_err(|error| error.to_string())?;
    Ok((typed, rest))
}

fn typed(args: &[&str]) -> Typed {
    parse(args).unwrap().0
}

#[test]
fn the_table_has_these_flags_and_no_others() {
    let mut wanted: Vec<&str> = rows().map(|row| row.0).collect();
    let mut present: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    wanted.sort_unstable();
    present.sort_unstable();
    assert_eq!(present, wanted);
}

#[test]
fn defaults_given_values_and_effect_beside_a_file() {
    for (name, default, given, shown, counts) in rows() {
        let flag = find(name);
        assert_eq!(flag.show(&Typed::default()), *default, "--{name}");
        assert_eq!(flag.counts_with_config, *counts, "--{name}");
        let with_equals = typed(&[&format!("--{name}={given}")]);
        assert_eq!(flag.show(&with_equals), *shown, "--{name}={given}");
        assert!(
            with_equals.given.contains(name) && with_equals.given.iter().len() == 1,
            "--{name}"
        );
        let underscored = typed(&[&format!("--{}={given}", name.replace('-', "_"))]);
        assert_eq!(flag.show(&underscored), *shown, "--{name} with underscores");
        if flag.implied().is_none() {
            let apart = typed(&[&format!("--{name}"), given]);
            assert_eq!(flag.show(&apart), *shown, "--{name} {given}");
        }
    }
}

#[test]
fn boolean_flags_take_their_value_only_with_an_equals_sign() {
    for flag in FLAGS
        .iter()
        .filter(|flag| flag.implied().is_some() && flag.name != "help")
    {
        let (typed, rest) = parse(&[&format!("--{}", flag.name), "false"]).unwrap();
        assert_eq!(
            (flag.show(&typed).as_str(), rest.positional),
            ("true", vec!["false".to_owned()]),
            "{}",
            flag.name
        );
    }
}

#[test]
fn shorthands() {
    let verbosity = |args: &[&str]| typed(args).config.logging.verbosity;
    for args in [&["-v2"][..], &["-v=2"], &["-v", "2"], &["--v=2"], &["--v", "2"]] {
        assert_eq!(verbosity(args), 2, "{args:?}");
    }
    assert!(typed(&["-h"]).help && typed(&["--help"]).help);
    assert_eq!(parse(&["-x"]).unwrap_err(), "unknown shorthand flag: 'x' in -x");
    assert_eq!(parse(&["-hx"]).unwrap_err(), "unknown shorthand flag: 'x' in -x");
    assert_eq!(parse(&["-v"]).unwrap_err(), "flag needs an argument: 'v' in -v");
    assert_eq!(
        parse(&["-v=x"]).unwrap_err(),
        "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax"
    );
}

#[test]
fn lists_accumulate_over_repetitions() {
    let typed = typed(&[
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses",
        "fd00::/8,1.0.0.0/8",
    ]);
    assert_eq!(
        typed.config.node_port_addresses.unwrap(),
        ["10.0.0.0/8", "fd00::/8", "1.0.0.0/8"]
    );
    let gates = self::typed(&["--feature-gates=A=true", "--feature-gates=B=true,A=false"]);
    assert_eq!(find("feature-gates").show(&gates), "A=false,B=true");
    let modules = self::typed(&["--vmodule=a=1", "--vmodule=b=2"]);
    assert_eq!(find("vmodule").show(&modules), "a=1,b=2");
}

#[test]
fn what_cannot_be_read_is_refused_in_gos_words() {
    for (arg, why) in [
        ("--nosuch", "unknown flag: --nosuch"),
        ("--logtostderr", "unknown flag: --logtostderr"),
        ("--enable-dsr", "unknown flag: --enable-dsr"),
        ("---x", "bad flag syntax: ---x"),
        ("--=x", "bad flag syntax: --=x"),
        ("--config", "flag needs an argument: --config"),
        (
            "--cleanup=x",
            r#"invalid argument "x" for "--cleanup" flag: strconv.ParseBool: parsing "x": invalid syntax"#,
        ),
        (
            "--oom-score-adj=x",
            r#"invalid argument "x" for "--oom-score-adj" flag: strconv.ParseInt: parsing "x": invalid syntax"#,
        ),
        (
            "--conntrack-min=99999999999",
            r#"invalid argument "99999999999" for "--conntrack-min" flag: strconv.ParseInt: parsing "99999999999": value out of range"#,
        ),
        (
            "--kube-api-qps=x",
            r#"invalid argument "x" for "--kube-api-qps" flag: strconv.ParseFloat: parsing "x": invalid syntax"#,
        ),
        (
            "--config-sync-period=5",
            r#"invalid argument "5" for "--config-sync-period" flag: time: missing unit in duration "5""#,
        ),
        (
            "--bind-address=x",
            r#"invalid argument "x" for "--bind-address" flag: "x" is not a valid IP address"#,
        ),
        (
            "--healthz-bind-address=x",
            r#"invalid argument "x" for "--healthz-bind-address" flag: "x" is not in a valid format (ip or ip:port): address x: missing port in address"#,
        ),
        (
            "--metrics-bind-address=1.1.1.1:x",
            r#"invalid argument "1.1.1.1:x" for "--metrics-bind-address" flag: "x" is not a valid number"#,
        ),
        (
            "--feature-gates=Foo",
            r#"invalid argument "Foo" for "--feature-gates" flag: malformed pair, expect string=bool"#,
        ),
        (
            "--feature-gates=Foo=x",
            r#"invalid argument "Foo=x" for "--feature-gates" flag: invalid value of Foo: x, err: strconv.ParseBool: parsing "x": invalid syntax"#,
        ),
        (
            "--vmodule=a",
            r#"invalid argument "a" for "--vmodule" flag: "a" does not have the pattern=N format"#,
        ),
        (
            "--vmodule=a=x",
            r#"invalid argument "a=x" for "--vmodule" flag: parsing verbosity in "a=x": strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        (
            "--log-json-info-buffer-size=x",
            r#"invalid argument "x" for "--log-json-info-buffer-size" flag: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#,
        ),
        (
            "--nodeport-addresses=a\"b",
            r#"invalid argument "a\"b" for "--nodeport-addresses" flag: parse error on line 1, column 2: bare " in non-quoted-field"#,
        ),
        (
            "--version=v9.9.9",
            r#"invalid argument "v9.9.9" for "--version" flag: version "v9.9.9" must match major/minor/patch of default version "v1.36.4""#,
        ),
        (
            "--version=vx",
            r#"invalid argument "vx" for "--version" flag: could not parse "vx" as version"#,
        ),
    ] {
        assert_eq!(parse(&[arg]).unwrap_err(), why, "{arg}");
    }
}

#[test]
fn empty_addresses_change_nothing_and_can_be_given_a_value_again() {
    let typed = typed(&[
        "--bind-address=",
        "--healthz-bind-address=",
        "--metrics-bind-address=",
    ]);
    assert_eq!(typed.config, Typed::default().config);
    let again = self::typed(&["--bind-address=", "--bind-address=::1"]);
    assert_eq!(again.config.bind_address, "::1");
}

#[test]
fn a_double_dash_ends_the_flags() {
    let (typed, rest) = parse(&["-v1", "a", "--", "--nosuch", "-v2"]).unwrap();
    assert_eq!(typed.config.logging.verbosity, 1);
    assert_eq!(rest.positional, ["a", "--nosuch", "-v2"]);
    assert_eq!(parse(&["-"]).unwrap().1.positional, ["-"]);
}

#[test]
fn deprecated_ports_are_announced() {
    let (_, rest) = parse(&["--healthz-port=0", "--metrics-port", "1"]).unwrap();
    assert_eq!(
        rest.notices,
        [
            "Flag --healthz-port has been deprecated, This flag is deprecated and will be removed in a future release. Please use --healthz-bind-address instead.",
            "Flag --metrics-port has been deprecated, This flag is deprecated and will be removed in a future release. Please use --metrics-bind-address instead."
        ]
    );
}

#[test]
fn deprecated_ports_complete_addresses_or_switch_the_server_off() {
    let addresses = |args: &[&str]| {
        let settings = Settings::from_args(args).unwrap();
        let show = |address: Option<std::net::SocketAddr>| address.map(|address| address.to_string());
        (
            show(settings.healthz_bind_address),
            show(settings.metrics_bind_address),
        )
    };
    let some = |a: &str, b: &str| (Some(a.to_owned()), Some(b.to_owned()));
    assert_eq!(addresses(&[]), some("0.0.0.0:10256", "127.0.0.1:10249"));
    assert_eq!(
        addresses(&["--healthz-bind-address=1.2.3.4"]),
        some("1.2.3.4:10256", "127.0.0.1:10249")
    );
    assert_eq!(
        addresses(&[
            "--healthz-bind-address=::1",
            "--healthz-port=1",
            "--metrics-port=2"
        ]),
        some("[::1]:1", "127.0.0.1:10249")
    );
    assert_eq!(addresses(&["--healthz-port=0", "--metrics-port=0"]), (None, None));
    // kube-proxy's defaults are made before it reads the flag.
    assert_eq!(
        addresses(&["--bind-address=::1"]),
        some("0.0.0.0:10256", "127.0.0.1:10249")
    );
}

#[test]
fn sync_flags_count_in_their_modes() {
    let periods = |args: &[&str]| {
        let settings = Settings::from_args(args).unwrap();
        (settings.sync_period.as_secs(), settings.min_sync_period.as_secs())
    };
    let all = [
        "--iptables-sync-period=40s",
        "--iptables-min-sync-period=4s",
        "--ipvs-sync-period=50s",
    ];
    for (mode, expected) in [
        ("", (40, 4)),
        ("iptables", (40, 4)),
        ("nftables", (40, 4)),
        ("userspace", (40, 4)),
        ("ipvs", (50, 1)),
    ] {
        let mode_flag = format!("--proxy-mode={mode}");
        let mut args = vec![mode_flag.as_str()];
        args.extend(all);
        assert_eq!(periods(&args), expected, "{mode}");
    }
}

#[test]
fn flags_that_a_file_makes_void_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    std::fs::write(
        &path,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n",
    )
    .unwrap();
    for (name, _, given, _, counts) in rows().filter(|row| !["config", "help", "version"].contains(&row.0)) {
        let config = format!("--config={}", path.display());
        let completed = config::complete(&typed(&[&config, &format!("--{name}={given}")])).unwrap();
        let warned: Vec<&str> = completed
            .notes
            .iter()
            .filter(|note| note.level == Level::Warning)
            .flat_map(|note| note.fields.iter().map(|(_, value)| value.as_str()))
            .collect();
        let flag = format!("--{name}");
        let expected = if *counts { vec![] } else { vec![flag.as_str()] };
        assert_eq!(warned, expected);
    }
}

#[test]
fn a_flag_changes_what_a_file_says_if_it_lasts_and_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    std::fs::write(
        &path,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nlogging: {flushFrequency: 1}\n",
    )
    .unwrap();
    let config_flag = format!("--config={}", path.display());
    let written = |args: &[&str]| config::to_yaml(&config::complete(&typed(args)).unwrap().config);
    let of_the_file = written(&[&config_flag]);
    // These say what to do, not how.
    let actions = [
        "config",
        "write-config-to",
        "cleanup",
        "init-only",
        "version",
        "help",
        "master",
    ];
    for (name, _, given, _, counts) in rows().filter(|row| !actions.contains(&row.0)) {
        let both = written(&[&config_flag, &format!("--{name}={given}")]);
        assert_eq!(both != of_the_file, *counts, "--{name}");
    }
    let flush = written(&[&config_flag, "--log-flush-frequency=3s"]);
    assert!(flush.contains("flushFrequency: 3s\n"), "{flush}");
}

#[test]
fn flags_that_last_override_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                hostnameOverride: From-File\nmode: nftables\n\
                logging: {verbosity: 1, vmodule: [{filePattern: f, verbosity: 9}]}\n\
                ferry: {manifests: /file, trafficCounters: true}\n";
    std::fs::write(&path, text).unwrap();
    let config = format!("--config={}", path.display());
    let file_only = Settings::from_args(&[&config]).unwrap();
    assert_eq!(file_only.hostname_override.as_deref(), Some("from-file"));
    assert_eq!(
        (file_only.logging.verbosity, file_only.traffic_counters),
        (1, true)
    );
    assert_eq!(file_only.source, config::Source::Manifests("/file".into()));

    let args = [
        &config,
        "-v=5",
        "--vmodule=c=3",
        "--hostname-override= Typed ",
        "--manifests=/typed",
    ];
    let both = Settings::from_args(&args).unwrap();
    assert_eq!(both.hostname_override.as_deref(), Some("typed"));
    assert_eq!(both.logging.verbosity, 5);
    assert_eq!(both.logging.patterns.len(), 2);
    assert!(
        format!("{:?}", both.logging.patterns[0]).contains("\"c\""),
        "the flag's pattern comes first"
    );
    assert_eq!(both.source, config::Source::Manifests("/typed".into()));
    let quiet = Settings::from_args(&[&config, "--traffic-counters=false", "--proxy-mode=ipvs"]).unwrap();
    assert!(!quiet.traffic_counters);
    assert_eq!(quiet.mode, ferry_app::modes::Mode::named("nftables").unwrap());
}

#[test]
fn a_blank_host_name_is_refused() {
    let error = Settings::from_args(&["--hostname-override=  "]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed complete: empty hostname-override is invalid"
    );
}

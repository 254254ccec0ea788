//! Every rule of validation: the exact message, and that the value next to it is fine.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferry_app::config::Settings;

fn error(args: &[&str]) -> Option<String> {
    Settings::from_args(args).err().map(|error| error.to_string())
}

/// The error of a configuration file, given the lines below its head.
fn file_error(lines: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.conf");
    let text =
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{lines}\n");
    std::fs::write(&path, text).unwrap();
    error(&["--config", path.to_str().unwrap()])
}

#[track_caller]
fn refused(lines: &str, message: &str) {
    assert_eq!(
        file_error(lines).as_deref(),
        Some(format!("failed validate: KubeProxyConfiguration.{message}").as_str()),
        "{lines}"
    );
}

#[track_caller]
fn accepted(lines: &str) {
    assert_eq!(file_error(lines), None, "{lines}");
}

#[test]
fn masquerade_bits() {
    for bit in [-1, 32] {
        for mode in ["iptables", "ipvs", "nftables"] {
            refused(
                &format!("mode: {mode}\niptables: {{masqueradeBit: {bit}}}"),
                &format!(
                    "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: {bit}: must be within the range [0, 31]"
                ),
            );
        }
        refused(
            &format!("mode: nftables\nnftables: {{masqueradeBit: {bit}}}"),
            &format!(
                "KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: {bit}: must be within the range [0, 31]"
            ),
        );
        accepted(&format!("mode: ipvs\nnftables: {{masqueradeBit: {bit}}}"));
    }
    for bit in [0, 31] {
        accepted(&format!(
            "mode: nftables\niptables: {{masqueradeBit: {bit}}}\nnftables: {{masqueradeBit: {bit}}}"
        ));
    }
}

#[test]
fn ipvs() {
    for (field, name) in [
        ("tcpTimeout", "TCPTimeout"),
        ("tcpFinTimeout", "TCPFinTimeout"),
        ("udpTimeout", "UDPTimeout"),
    ] {
        refused(
            &format!("mode: ipvs\nipvs: {{{field}: -1s}}"),
            &format!(
                "KubeProxyIPVSConfiguration.{name}: Invalid value: \"-1s\": must be greater than or equal to 0"
            ),
        );
        accepted(&format!("mode: iptables\nipvs: {{{field}: -1s}}"));
    }
    refused(
        "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, 1.2.3.4]}",
        "KubeProxyIPVSConfiguration.ExcludeCidrs[1]: Invalid value: \"1.2.3.4\": must be a valid CIDR",
    );
    accepted("mode: ipvs\nipvs: {excludeCIDRs: [010.0.0.0/8, \"fd00::/8\"]}");
}

#[test]
fn conntrack_and_oom_score() {
    let linux = "KubeProxyLinuxConfiguration";
    for (field, name) in [("maxPerCore", "MaxPerCore"), ("min", "Min")] {
        refused(
            &format!("conntrack: {{{field}: -1}}"),
            &format!(
                "{linux}.KubeProxyConntrackConfiguration.{name}: Invalid value: -1: must be greater than or equal to 0"
            ),
        );
    }
    for (field, name) in [
        ("tcpEstablishedTimeout", "TCPEstablishedTimeout"),
        ("tcpCloseWaitTimeout", "TCPCloseWaitTimeout"),
        ("udpTimeout", "UDPTimeout"),
        ("udpStreamTimeout", "UDPStreamTimeout"),
    ] {
        refused(
            &format!("conntrack: {{{field}: -1ms}}"),
            &format!(
                "{linux}.KubeProxyConntrackConfiguration.{name}: Invalid value: \"-1ms\": must be greater than or equal to 0"
            ),
        );
    }
    for score in [-1001, 1001] {
        refused(
            &format!("oomScoreAdj: {score}"),
            &format!("{linux}.OOMScoreAdj: Invalid value: {score}: must be within the range [-1000, 1000]"),
        );
    }
    accepted(
        "oomScoreAdj: -1000\nconntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, udpTimeout: 0s}",
    );
    accepted("oomScoreAdj: 1000");
}

#[test]
fn mode() {
    refused(
        "mode: kernelspace",
        "Mode.ProxyMode: Invalid value: \"kernelspace\": must be iptables, ipvs, nftables, userspace or blank (blank means the best-available proxy [currently iptables])",
    );
    for mode in ["iptables", "ipvs", "nftables", "userspace", "\"\""] {
        accepted(&format!("mode: {mode}"));
    }
}

#[test]
fn client() {
    refused(
        "clientConnection: {burst: -1}",
        "ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0",
    );
    accepted("clientConnection: {qps: -1}");
    for number in ["NaN", "inf", "-inf"] {
        assert_eq!(
            error(&[&format!("--kube-api-qps={number}")]),
            Some(format!(
                "failed validate: KubeProxyConfiguration.ClientConnection.QPS: Invalid value: {number}: must be a number"
            ))
        );
    }
    for number in ["1e40", ".inf", "-.inf", ".nan", "inf"] {
        let message = file_error(&format!("clientConnection: {{qps: {number}}}")).unwrap();
        assert!(
            message.contains("clientConnection.qps of type float32"),
            "{message}"
        );
    }
}

#[test]
fn host_name() {
    refused(
        "hostnameOverride: \"  \"",
        "HostnameOverride: Invalid value: \"  \": must not be blank",
    );
    accepted("hostnameOverride: \" Node-1 \"");
}

#[test]
fn periods() {
    refused(
        "configSyncPeriod: -1s",
        "ConfigSyncPeriod: Invalid value: \"-1s\": must be greater than 0",
    );
    refused(
        "iptables: {minSyncPeriod: -1s}",
        "MinSyncPeriod: Invalid value: \"-1s\": must be greater than or equal to 0",
    );
    refused(
        "iptables: {syncPeriod: 5s, minSyncPeriod: 6s}",
        "SyncPeriod: Invalid value: \"6s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    );
    accepted("iptables: {syncPeriod: 5s, minSyncPeriod: 5s}");
    assert_eq!(
        error(&["--iptables-sync-period=0", "--iptables-min-sync-period=0"]).as_deref(),
        Some(
            "failed validate: KubeProxyConfiguration.SyncPeriod: Invalid value: \"0s\": must be greater than 0"
        )
    );
}

#[test]
fn addresses() {
    refused(
        "bindAddress: x",
        "BindAddress: Invalid value: \"x\": not a valid textual representation of an IP address",
    );
    for (field, name) in [
        ("healthzBindAddress", "HealthzBindAddress"),
        ("metricsBindAddress", "MetricsBindAddress"),
    ] {
        for (address, value, detail) in [
            ("x", "x", "must be IP:port"),
            ("x:1", "x", "must be a valid IP"),
            ("1.2.3.4:0", "0", "must be a valid port"),
            ("1.2.3.4:65536", "65536", "must be a valid port"),
            ("1.2.3.4:x", "x", "must be a valid port"),
        ] {
            refused(
                &format!("{field}: \"{address}\""),
                &format!("{name}: Invalid value: \"{value}\": {detail}"),
            );
        }
        for address in ["1.2.3.4", "010.0.0.1:1", "::", "[::1]:65535"] {
            accepted(&format!("{field}: \"{address}\""));
        }
    }
    // A port is not added to what will be written to a file.
    assert_eq!(
        error(&["--write-config-to=/dev/null", "--healthz-bind-address=1.2.3.4"]).as_deref(),
        Some(
            "failed validate: KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"1.2.3.4\": must be IP:port"
        )
    );
}

#[test]
fn node_port_addresses() {
    refused(
        "nodePortAddresses: [10.0.0.0/8, x]",
        "NodePortAddresses[1]: Invalid value: \"x\": must be a valid CIDR",
    );
    refused(
        "nodePortAddresses: [10.0.0.0/8, primary, x]",
        "NodePortAddresses[1]: Invalid value: \"primary\": can't use both 'primary' and CIDRs",
    );
    for list in ["[]", "[primary]", "[10.0.0.0/8, \"fd00::/8\", 010.1.0.0/16]"] {
        accepted(&format!("nodePortAddresses: {list}"));
    }
}

#[test]
fn hidden_metrics() {
    refused(
        "showHiddenMetricsForVersion: \"1.20\"",
        "ShowHiddenMetricsForVersion: Invalid value: \"1.20\": invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: \"1.20\": must be omitted or have the value '1.35'; only the previous minor version is allowed",
    );
    accepted("showHiddenMetricsForVersion: \"1.35\"");
}

#[test]
fn detect_local() {
    refused(
        "detectLocalMode: foo",
        "DetectLocalMode: Unsupported value: \"foo\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
    );
    refused(
        "detectLocalMode: BridgeInterface",
        "DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty",
    );
    refused(
        "detectLocalMode: InterfaceNamePrefix",
        "DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty",
    );
    accepted("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0}");
    accepted("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}");
    accepted("detectLocalMode: NodeCIDR\nclusterCIDR: nonsense");
    let pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]";
    let path = "DetectLocalConfiguration.ClusterCIDRs";
    for (cidrs, value) in [
        ("10.0.0.0/8,11.0.0.0/8", r#"["10.0.0.0/8","11.0.0.0/8"]"#),
        (
            "10.0.0.0/8,fd00::/8,11.0.0.0/8",
            r#"["10.0.0.0/8","fd00::/8","11.0.0.0/8"]"#,
        ),
    ] {
        refused(
            &format!("clusterCIDR: {cidrs}"),
            &format!("{path}: Invalid value: {value}: {pair}"),
        );
    }
    let block = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
    refused(
        "clusterCIDR: 10.0.0.0/8, fd00::/8",
        &format!("{path}[1]: Invalid value: \" fd00::/8\": {block}"),
    );
    assert_eq!(
        error(&["--cluster-cidr="]),
        Some(format!(
            "failed validate: KubeProxyConfiguration.{path}[0]: Invalid value: \"\": {block}"
        ))
    );
    for cidrs in ["10.0.0.0/8", "fd00::/8,10.0.0.0/8"] {
        accepted(&format!("clusterCIDR: {cidrs}"));
    }
}

#[test]
fn userspace() {
    refused(
        "mode: userspace\nferry: {userspace: {portRange: 9-8}}",
        "PortRange: Invalid value: \"9-8\": must be a valid port range (e.g. 300-2000)",
    );
    refused(
        "mode: userspace\nferry: {userspace: {udpTimeout: 0s}}",
        "UDPIdleTimeout: Invalid value: \"0s\": must be greater than 0",
    );
    accepted("mode: iptables\nportRange: nonsense\nferry: {userspace: {portRange: 9-8, udpTimeout: 0s}}");
}

#[test]
fn several_faults_are_a_list_in_order() {
    assert_eq!(
        file_error("mode: x\noomScoreAdj: 2000\nbindAddress: z").unwrap(),
        "failed validate: [KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 2000: must be within the range [-1000, 1000], \
         KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"x\": must be iptables, ipvs, nftables, userspace or blank (blank means the best-available proxy [currently iptables]), \
         KubeProxyConfiguration.BindAddress: Invalid value: \"z\": not a valid textual representation of an IP address]"
    );
}

#[test]
fn feature_gates() {
    for (lines, why) in [
        ("featureGates: {Foo: true}", "unrecognized feature gate: Foo"),
        (
            "featureGates: {MultiCIDRServiceAllocator: false}",
            "cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to true",
        ),
    ] {
        assert_eq!(file_error(lines), Some(format!("failed complete: {why}")));
    }
    assert_eq!(
        error(&["--feature-gates=Foo=true"]).as_deref(),
        Some("failed complete: unrecognized feature gate: Foo")
    );
    accepted("featureGates: {MultiCIDRServiceAllocator: true, AllowServiceExternalIPs: false}");
}

#[test]
fn logging() {
    let alpha = "Forbidden: Feature LoggingAlphaOptions is disabled";
    for (lines, why) in [
        (
            "logging: {format: xml}",
            "logging.format: Invalid value: \"xml\": Unsupported log format".to_owned(),
        ),
        (
            "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
            "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
                .to_owned(),
        ),
        (
            "logging: {flushFrequency: -5s}",
            "logging.flushFrequency: Invalid value: \"-5s\": Must be greater than zero".to_owned(),
        ),
        (
            "logging: {verbosity: 2147483648}",
            "logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647".to_owned(),
        ),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging.vmodule: Forbidden: Only supported for text log format".to_owned(),
        ),
        (
            "logging: {vmodule: [{verbosity: 1}]}",
            "logging.vmodule[0]: Required value: File pattern must not be empty".to_owned(),
        ),
        (
            "logging: {vmodule: [{filePattern: \"a=b\", verbosity: 1}]}",
            "logging.vmodule[0]: Invalid value: \"a=b\": File pattern must not contain equal sign or comma"
                .to_owned(),
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 4294967295}]}",
            "logging.vmodule[0]: Invalid value: 4294967295: Must be <= 2147483647".to_owned(),
        ),
        (
            "logging: {options: {text: {infoBufferSize: 1}}}",
            format!("logging.options.text.infoBufferSize: {alpha}"),
        ),
        (
            "logging: {options: {json: {infoBufferSize: 1}}}",
            format!("logging.options.json.infoBufferSize: {alpha}"),
        ),
    ] {
        assert_eq!(
            file_error(lines),
            Some(format!("initialize logging: {why}")),
            "{lines}"
        );
    }
    for format in ["text", "json"] {
        // kube-proxy overwrites what a file says with the flag's default before it looks at the gate.
        accepted(&format!(
            "logging: {{options: {{{format}: {{splitStream: true}}}}}}"
        ));
        assert_eq!(
            error(&[&format!("--log-{format}-split-stream")]),
            Some(format!(
                "initialize logging: logging.options.{format}.splitStream: {alpha}"
            ))
        );
    }
    accepted("logging: {format: json, verbosity: 2147483647, flushFrequency: 1}");
    accepted(
        "logging: {options: {text: {splitStream: true, infoBufferSize: 1Ki}}}\nfeatureGates: {LoggingAlphaOptions: true}",
    );
    assert_eq!(
        error(&["--log-flush-frequency=0"]).as_deref(),
        Some("initialize logging: logging.flushFrequency: Invalid value: \"0s\": Must be greater than zero")
    );
}

#[test]
fn a_file_that_cannot_be_read_or_decoded_is_named_with_the_line() {
    assert_eq!(
        error(&["--config=/nonexistent/c"]).as_deref(),
        Some("failed complete: open /nonexistent/c: no such file or directory")
    );
    assert_eq!(
        error(&["--config=/"]).as_deref(),
        Some("failed complete: read /: is a directory")
    );
    let message = file_error("mode:\n  - x").unwrap();
    assert!(
        message.starts_with("failed complete: failed to decode: json: cannot unmarshal array into Go struct field KubeProxyConfiguration.mode of type string (")
            && message.ends_with("/config.conf, line 4)"),
        "{message}"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("binary");
    std::fs::write(&path, b"kind: \xff\xfe").unwrap();
    let message = error(&["--config", path.to_str().unwrap()]).unwrap();
    assert!(message.ends_with("is not UTF-8 text (byte 6)"), "{message}");
}

//! Exact rules, as kube-proxy writes them.

use std::time::Duration;

use ferry_model::*;

use super::super::names::{Shared, Table};
use super::super::render::{Context, Style, render_node, render_service};
use super::super::ruleset::{Counts, ServiceRules};
use super::STYLE;
use super::facts::{add, add_slice, ip, options, planner, service, slice};

fn context(plan: &Plan, family: Family) -> Context<'_> {
    Context {
        family,
        node: plan.node(),
        style: STYLE,
        comments: true,
    }
}

fn rendered(planner: &Planner, family: Family) -> ServiceRules {
    render_service(
        planner.plan().services().next().unwrap(),
        &context(planner.plan(), family),
    )
}

/// `:chain` and `-A chain rule` lines of the service's own chains.
fn chains(rules: &ServiceRules) -> Vec<String> {
    let declared = rules.chains.iter().map(|chain| format!(":{}", chain.name));
    let filled = rules
        .chains
        .iter()
        .flat_map(|chain| chain.lines.lines().map(str::to_owned));
    declared.chain(filled).collect()
}

/// A load balancer with everything: Local policy, affinity, ranges that include the node, both kinds of addresses.
fn web() -> Service {
    let mut web = service("shop", "web", "172.30.9.1", "http", 80);
    web.kind = ServiceType::LoadBalancer;
    web.external_policy = TrafficPolicy::Local;
    web.ports[0].node_port = Some(31080);
    web.external_ips = vec![ip("192.168.99.22")];
    web.load_balancer_ips = vec![ip("1.2.3.4"), ip("5.6.7.8")];
    web.source_ranges = ["192.168.0.0/24", "203.0.113.0/25"]
        .map(|net| net.parse().unwrap())
        .into();
    web.affinity = Some(Duration::from_secs(600));
    web.health_check_node_port = Some(32100);
    web
}

#[test]
fn a_load_balancer_with_everything() {
    let mut planner = planner();
    let endpoints = slice(&web(), &["10.180.0.1", "10.180.1.1", "10.180.1.10"], 8080, 1);
    planner.update([add(web()), add_slice(endpoints)]);
    let rules = rendered(&planner, Family::V4);
    let expected = r#"
:KUBE-EXT-67NZLRHBNDSAWJRO
:KUBE-FW-67NZLRHBNDSAWJRO
:KUBE-SVC-67NZLRHBNDSAWJRO
:KUBE-SVL-67NZLRHBNDSAWJRO
:KUBE-SEP-ZZ5QQVSVEYRRQLTX
:KUBE-SEP-Y3KNDRYDURKCHYRT
:KUBE-SEP-YCI5FLUZZZWLO7SW
-A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "pod traffic for shop/web:http external destinations" -s 10.0.0.0/8 -j KUBE-SVC-67NZLRHBNDSAWJRO
-A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "route LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-67NZLRHBNDSAWJRO
-A KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVL-67NZLRHBNDSAWJRO
-A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http loadbalancer IP" -s 192.168.0.0/24 -j KUBE-EXT-67NZLRHBNDSAWJRO
-A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http loadbalancer IP" -s 203.0.113.0/25 -j KUBE-EXT-67NZLRHBNDSAWJRO
-A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http loadbalancer IP" -s 1.2.3.4 -j KUBE-EXT-67NZLRHBNDSAWJRO
-A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http loadbalancer IP" -s 5.6.7.8 -j KUBE-EXT-67NZLRHBNDSAWJRO
-A KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "other traffic to shop/web:http will be dropped by KUBE-PROXY-FIREWALL"
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 172.30.9.1 --dport 80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.0.1:8080" -m recent --name KUBE-SEP-ZZ5QQVSVEYRRQLTX --rcheck --seconds 600 --reap -j KUBE-SEP-ZZ5QQVSVEYRRQLTX
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.1.10:8080" -m recent --name KUBE-SEP-Y3KNDRYDURKCHYRT --rcheck --seconds 600 --reap -j KUBE-SEP-Y3KNDRYDURKCHYRT
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.1.1:8080" -m recent --name KUBE-SEP-YCI5FLUZZZWLO7SW --rcheck --seconds 600 --reap -j KUBE-SEP-YCI5FLUZZZWLO7SW
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.0.1:8080" -m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-ZZ5QQVSVEYRRQLTX
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.1.10:8080" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-Y3KNDRYDURKCHYRT
-A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.1.1:8080" -j KUBE-SEP-YCI5FLUZZZWLO7SW
-A KUBE-SVL-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.0.1:8080" -m recent --name KUBE-SEP-ZZ5QQVSVEYRRQLTX --rcheck --seconds 600 --reap -j KUBE-SEP-ZZ5QQVSVEYRRQLTX
-A KUBE-SVL-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.180.0.1:8080" -j KUBE-SEP-ZZ5QQVSVEYRRQLTX
-A KUBE-SEP-ZZ5QQVSVEYRRQLTX -m comment --comment shop/web:http -s 10.180.0.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-ZZ5QQVSVEYRRQLTX -m comment --comment shop/web:http -m recent --name KUBE-SEP-ZZ5QQVSVEYRRQLTX --set -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:8080
-A KUBE-SEP-Y3KNDRYDURKCHYRT -m comment --comment shop/web:http -s 10.180.1.10 -j KUBE-MARK-MASQ
-A KUBE-SEP-Y3KNDRYDURKCHYRT -m comment --comment shop/web:http -m recent --name KUBE-SEP-Y3KNDRYDURKCHYRT --set -m tcp -p tcp -j DNAT --to-destination 10.180.1.10:8080
-A KUBE-SEP-YCI5FLUZZZWLO7SW -m comment --comment shop/web:http -s 10.180.1.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-YCI5FLUZZZWLO7SW -m comment --comment shop/web:http -m recent --name KUBE-SEP-YCI5FLUZZZWLO7SW --set -m tcp -p tcp -j DNAT --to-destination 10.180.1.1:8080"#;
    assert_eq!(chains(&rules), expected.trim_start().lines().collect::<Vec<_>>());
    assert_eq!(
        rules.shared(Shared::NatServices),
        [
            r#"-m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 172.30.9.1 --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO"#,
            r#"-m comment --comment "shop/web:http external IP" -m tcp -p tcp -d 192.168.99.22 --dport 80 -j KUBE-EXT-67NZLRHBNDSAWJRO"#,
            r#"-m comment --comment "shop/web:http loadbalancer IP" -m tcp -p tcp -d 1.2.3.4 --dport 80 -j KUBE-FW-67NZLRHBNDSAWJRO"#,
            r#"-m comment --comment "shop/web:http loadbalancer IP" -m tcp -p tcp -d 5.6.7.8 --dport 80 -j KUBE-FW-67NZLRHBNDSAWJRO"#,
        ]
    );
    assert_eq!(
        rules.shared(Shared::NatNodePorts),
        [
            "-m comment --comment shop/web:http -m tcp -p tcp -d 127.0.0.0/8 --dport 31080 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-67NZLRHBNDSAWJRO",
            "-m comment --comment shop/web:http -m tcp -p tcp --dport 31080 -j KUBE-EXT-67NZLRHBNDSAWJRO",
        ]
    );
    assert_eq!(
        rules.shared(Shared::FilterFirewall),
        ["1.2.3.4", "5.6.7.8"].map(|ip| format!(
            r#"-m comment --comment "shop/web:http traffic not accepted by KUBE-FW-67NZLRHBNDSAWJRO" -m tcp -p tcp -d {ip} --dport 80 -j DROP"#
        ))
    );
    assert_eq!(
        rules.shared(Shared::FilterNodePorts),
        [
            r#"-m comment --comment "shop/web:http health check node port" -m tcp -p tcp --dport 32100 -j ACCEPT"#
        ]
    );
    assert!(
        rules.shared(Shared::FilterServices).is_empty() && rules.shared(Shared::FilterExternal).is_empty()
    );
}

#[test]
fn without_endpoints_everything_is_rejected_and_nat_is_empty() {
    let mut planner = planner();
    let mut web = web();
    web.ports[0].protocol = Protocol::Sctp;
    planner.update([add(web)]);
    let rules = rendered(&planner, Family::V4);
    let reject =
        |rest: &str| format!(r#"-m comment --comment "shop/web:http has no endpoints" {rest} -j REJECT"#);
    let to = |ip: &str| reject(&format!("-m sctp -p sctp -d {ip} --dport 80"));
    assert_eq!(rules.shared(Shared::FilterServices), [to("172.30.9.1")]);
    let node_port = reject("-m addrtype --dst-type LOCAL -m sctp -p sctp --dport 31080");
    assert_eq!(
        rules.shared(Shared::FilterExternal),
        [to("192.168.99.22"), to("1.2.3.4"), to("5.6.7.8"), node_port]
    );
    assert!(rules.chains.is_empty() && rules.shared(Shared::NatServices).is_empty());
    assert!(rules.shared(Shared::FilterFirewall).is_empty() && rules.shared(Shared::NatNodePorts).is_empty());
}

#[test]
fn a_local_policy_with_remote_endpoints_only_drops_but_still_routes_its_own() {
    let mut planner = planner();
    planner.update([add(web()), add_slice(slice(&web(), &["10.180.1.1"], 8080, 0))]);
    let rules = rendered(&planner, Family::V4);
    let names: Vec<&str> = rules.chains.iter().map(|chain| &chain.name[..8]).collect();
    assert_eq!(names, ["KUBE-EXT", "KUBE-FW-", "KUBE-SVC", "KUBE-SEP"]);
    assert_eq!(rules.chains.get(0).unwrap().count, 3, "no last jump");
    assert_eq!(rules.shared(Shared::FilterExternal).len(), 4);
    assert!(rules.shared(Shared::FilterExternal).iter().all(|rule| {
        rule.contains("\"shop/web:http has no local endpoints\"") && rule.ends_with("-j DROP")
    }));
}

#[test]
fn an_ipv6_service_with_an_unnamed_port_and_a_local_internal_policy() {
    let mut planner = Planner::new(PlanOptions {
        node_port_addresses: ["2001:db8::/64", "::1/128"]
            .map(|cidr| NodePortAddress::Cidr(cidr.parse().unwrap()))
            .into(),
        ..options()
    });
    let addresses = ["::1", "2001:db8::1", "2001:db8:1::2"].map(ip).into();
    let mut dns = service("ns1", "svc1", "fd00:172:30::41", "", 53);
    dns.kind = ServiceType::LoadBalancer;
    dns.ports[0] = ServicePort {
        protocol: Protocol::Udp,
        node_port: Some(30053),
        ..dns.ports[0].clone()
    };
    dns.internal_policy = TrafficPolicy::Local;
    dns.load_balancer_ips = vec![ip("2001:db8:ffff::1")];
    dns.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
    let endpoints = slice(&dns, &["fd00:10:180::1"], 5353, 0);
    planner.update([
        Event::Host(Host { addresses }.into()),
        add(dns),
        add_slice(endpoints),
    ]);
    let rules = rendered(&planner, Family::V6);
    assert_eq!(
        rules.shared(Shared::FilterServices),
        [
            r#"-m comment --comment "ns1/svc1 has no local endpoints" -m udp -p udp -d fd00:172:30::41 --dport 53 -j DROP"#
        ]
    );
    assert_eq!(
        rules.shared(Shared::NatServices),
        [
            r#"-m comment --comment "ns1/svc1 loadbalancer IP" -m udp -p udp -d 2001:db8:ffff::1 --dport 53 -j KUBE-EXT-A2PEVXD55OHK2IVW"#
        ]
    );
    assert_eq!(
        rules.shared(Shared::NatNodePorts),
        ["-m comment --comment ns1/svc1 -m udp -p udp --dport 30053 -j KUBE-EXT-A2PEVXD55OHK2IVW"]
    );
    assert!(chains(&rules).contains(
        &"-A KUBE-SEP-QRYMJIM2TBSHTZP3 -m comment --comment ns1/svc1 -m udp -p udp -j DNAT --to-destination [fd00:10:180::1]:5353".to_owned()
    ));
    let tail = &render_node(&context(planner.plan(), Family::V6)).tail;
    assert_eq!(
        *tail,
        [
            r#"-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -d 2001:db8::1 -j KUBE-NODEPORTS"#
        ]
    );
}

#[test]
fn large_clusters_lose_the_comments_of_endpoints_only() {
    let mut planner = planner();
    planner.update([
        add(web()),
        add_slice(slice(&web(), &["10.180.0.1", "10.180.1.1"], 8080, 1)),
    ]);
    let large = Context {
        comments: false,
        ..context(planner.plan(), Family::V4)
    };
    let rules = render_service(planner.plan().services().next().unwrap(), &large);
    for chain in rules.chains.iter() {
        let commented = chain.rules().filter(|rule| rule.contains("--comment")).count();
        match &chain.name[..9] {
            "KUBE-SEP-" | "KUBE-SVL-" => assert_eq!(commented, 0, "{}", chain.name),
            "KUBE-SVC-" => assert_eq!(commented, 1, "the masquerade rule keeps its comment"),
            "KUBE-EXT-" => assert_eq!(commented, chain.count - 1),
            _ => assert_eq!(commented, chain.count, "{}", chain.name),
        }
    }
}

#[test]
fn the_nodes_own_rules() {
    let planner = planner();
    let node = |style: Style, family| {
        render_node(&Context {
            style,
            ..context(planner.plan(), family)
        })
    };
    let chain = |node: &super::super::ruleset::NodeRules, name: &str| {
        node.chains
            .iter()
            .find(|(_, chain)| chain.name == name)
            .unwrap()
            .1
            .rules
            .clone()
    };
    let v4 = node(STYLE, Family::V4);
    assert_eq!(
        chain(&v4, "KUBE-FORWARD"),
        [
            "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x00004000/0x00004000 -j ACCEPT",
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]
    );
    assert_eq!(
        chain(&v4, "KUBE-POSTROUTING"),
        [
            "-m mark ! --mark 0x00004000/0x00004000 -j RETURN",
            "-j MARK --xor-mark 0x00004000",
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
        ]
    );
    assert_eq!(chain(&v4, "KUBE-MARK-MASQ"), ["-j MARK --or-mark 0x00004000"]);
    assert_eq!(
        v4.kubelet_firewall.as_deref(),
        Some(
            "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
        )
    );
    let uncounted = node(
        Style {
            count_invalid: false,
            random_fully: false,
            ..STYLE
        },
        Family::V4,
    );
    assert_eq!(
        chain(&uncounted, "KUBE-FORWARD")[0],
        "-m conntrack --ctstate INVALID -j DROP"
    );
    assert!(chain(&uncounted, "KUBE-POSTROUTING")[2].ends_with("-j MASQUERADE"));
    let liberal = node(
        Style {
            tcp_liberal: true,
            count_invalid: false,
            ..STYLE
        },
        Family::V4,
    );
    assert_eq!(chain(&liberal, "KUBE-FORWARD").len(), 2);
    let v6 = node(STYLE, Family::V6);
    assert_eq!(v6.kubelet_firewall, None);
    assert!(v6.tail[0].contains("-m addrtype --dst-type LOCAL ! -d ::1/128 -j KUBE-NODEPORTS"));
    assert!(v4.tail[0].ends_with("-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"));
    assert_eq!(v4.jumps.iter().filter(|jump| jump.table == Table::Nat).count(), 3);
}

#[test]
fn without_localhost_node_ports_loopback_is_left_alone() {
    let planner = Planner::new(PlanOptions {
        policy: Policy::iptables().without_localhost_node_ports(),
        ..options()
    });
    let node = render_node(&context(planner.plan(), Family::V4));
    assert_eq!(node.kubelet_firewall, None);
    assert!(node.tail[0].contains("--dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS"));
}

#[test]
fn rule_counts_are_kube_proxys() {
    let mut planner = planner();
    let base = render_node(&context(planner.plan(), Family::V4)).counts();
    assert_eq!(base, Counts { filter: 4, nat: 5 });
    let balancer = |at: u16| {
        let mut web = service(
            "ns",
            &format!("svc{at}"),
            &format!("172.30.0.{}", at + 1),
            "http",
            80,
        );
        web.kind = ServiceType::LoadBalancer;
        web.external_ips = vec![ip(&format!("192.168.99.{}", at + 1))];
        web.load_balancer_ips = vec![ip(&format!("1.2.3.{}", at + 1))];
        web.source_ranges = vec!["1.2.3.0/24".parse().unwrap()];
        web.ports[0].node_port = Some(3001 + at);
        web
    };
    let endpoints: Vec<String> = (0..10).map(|at| format!("10.0.1.{at}")).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let counts = |planner: &Planner| {
        let mut counts = base;
        for service in planner.plan().services() {
            counts.add(render_service(service, &context(planner.plan(), Family::V4)).counts());
        }
        counts
    };
    planner.update((0..10).flat_map(|at| {
        let web = balancer(at);
        [add_slice(slice(&web, &endpoints, 8080, 0)), add(web)]
    }));
    assert_eq!(counts(&planner), Counts { filter: 14, nat: 405 });
    planner.update((0..10).map(|at| {
        let web = balancer(at);
        let plain = service("ns", web.name.name(), &web.cluster_ips[0].to_string(), "http", 80);
        add(plain)
    }));
    assert_eq!(counts(&planner), Counts { filter: 4, nat: 325 });
}

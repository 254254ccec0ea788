//! A table with one of everything, beside what `nft` says of it.

use std::sync::Arc;

use ferry_host::nftables::*;

pub(crate) fn name(text: &str) -> Arc<str> {
    text.into()
}

/// A rule of a chain, and the text that `nft` must print for it.
type Expected = (&'static str, Rule, &'static str);

/// A table with every kind of object that we write.
pub(crate) struct Sample {
    pub(crate) chains: Vec<ChainDecl>,
    pub(crate) sets: Vec<SetDecl>,
    pub(crate) elements: Vec<(&'static str, Vec<Element>)>,
    pub(crate) rules: Vec<Expected>,
}

pub(crate) fn sample() -> Sample {
    let base = |kind, hook, priority| Some(BaseChain { kind, hook, priority });
    Sample {
        chains: vec![
            chain("nat-prerouting", base(ChainKind::Nat, Hook::Prerouting, -100)),
            chain("nat-postrouting", base(ChainKind::Nat, Hook::Postrouting, 100)),
            chain("filter-input", base(ChainKind::Filter, Hook::Input, 0)),
            chain("filter-output", base(ChainKind::Filter, Hook::Output, -110)),
            chain("services", None),
            chain("checks", None),
            chain("lb-2", None),
            chain("endpoint", None),
        ],
        sets: sets(),
        elements: elements(),
        rules: [base_rules(), service_rules(), endpoint_rules()].concat(),
    }
}

fn chain(name: &str, base: Option<BaseChain>) -> ChainDecl {
    ChainDecl {
        name: name.into(),
        base,
        comment: Some(format!("what {name} is for").into()),
    }
}

fn rule(expressions: &[Expr]) -> Rule {
    Rule {
        expressions: expressions.to_vec(),
        comment: None,
    }
}

fn set(name: &str, key: &[Field], data: Option<DataType>) -> SetDecl {
    SetDecl {
        key: key.into(),
        data,
        comment: Some(format!("all of {name}").into()),
        ..SetDecl::new(name)
    }
}

fn sets() -> Vec<SetDecl> {
    let endpoint = DataType::Fields([Field::Ipv4, Field::Port].into());
    vec![
        set("cluster-ips", &[Field::Ipv4], None),
        set("protocols", &[Field::Proto], None),
        set(
            "service-ips",
            &[Field::Ipv4, Field::Proto, Field::Port],
            Some(DataType::Verdict),
        ),
        SetDecl {
            counter: true,
            ..set(
                "endpoints",
                &[Field::Ipv4, Field::Proto, Field::Port, Field::Number],
                Some(endpoint),
            )
        },
        set("pick", &[Field::Number], Some(DataType::Verdict)),
        set(
            "frontends",
            &[Field::Ipv4, Field::Proto, Field::Port],
            Some(DataType::Fields([Field::Class].into())),
        ),
        set("balancers", &[Field::Class], Some(DataType::Verdict)),
        SetDecl {
            interval: true,
            ..set("ranges", &[Field::Ipv4], None)
        },
        SetDecl {
            dynamic: true,
            ..set(
                "clients",
                &[Field::Ipv4],
                Some(DataType::Fields([Field::Class].into())),
            )
        },
    ]
}

fn elements() -> Vec<(&'static str, Vec<Element>)> {
    let frontend = |last: u8| Key::concat(&[&[10, 0, 0, last], &[6], &80u16.to_be_bytes()]);
    let slot = |last: u8, slot: u32| {
        Key::concat(&[&[10, 0, 0, last], &[6], &80u16.to_be_bytes(), &slot.to_ne_bytes()])
    };
    let target = Value::Data(Data::concat(&[&[10, 1, 0, 1], &8080u16.to_be_bytes()]));
    let named = |key: Key, value: Value| Element {
        comment: Some("ns/web:http".into()),
        ..Element::new(key, value)
    };
    let bound = |bytes: [u8; 4], interval_end| Element {
        interval_end,
        ..Element::new(Key::of(&bytes), Value::None)
    };
    vec![
        (
            "cluster-ips",
            vec![Element::new(Key::of(&[10, 0, 0, 1]), Value::None)],
        ),
        (
            "protocols",
            [6, 17, 132]
                .map(|proto| Element::new(Key::of(&[proto]), Value::None))
                .into(),
        ),
        (
            "service-ips",
            vec![
                named(frontend(1), Value::Verdict(Verdict::Goto(name("lb-2")))),
                named(frontend(2), Value::Verdict(Verdict::Drop)),
            ],
        ),
        (
            "endpoints",
            vec![
                Element::new(slot(1, 0), target.clone()),
                Element::new(slot(1, 65537), target),
            ],
        ),
        (
            "frontends",
            vec![named(
                frontend(1),
                Value::Data(Data::concat(&[&0x1_0002u32.to_ne_bytes()])),
            )],
        ),
        (
            "balancers",
            vec![Element::new(
                Key::of(&0x1_0002u32.to_ne_bytes()),
                Value::Verdict(Verdict::Goto(name("lb-2"))),
            )],
        ),
        (
            "pick",
            vec![Element::new(
                Key::of(&1u32.to_ne_bytes()),
                Value::Verdict(Verdict::Goto(name("endpoint"))),
            )],
        ),
        (
            "ranges",
            vec![
                bound([10, 0, 0, 0], false),
                bound([11, 0, 0, 0], true),
                bound([192, 168, 1, 0], false),
                bound([192, 168, 1, 128], true),
                bound([240, 0, 0, 0], false),
            ],
        ),
    ]
}

const R0: Register = Register(0);
const R1: Register = Register(1);
const R2: Register = Register(2);
const R3: Register = Register(3);
const R4: Register = Register(4);

fn saddr(length: u32) -> Expr {
    Expr::Payload {
        base: PayloadBase::Network,
        offset: 12,
        length,
        to: R0,
    }
}

fn daddr() -> Expr {
    Expr::Payload {
        base: PayloadBase::Network,
        offset: 16,
        length: 4,
        to: R0,
    }
}

fn dport(to: Register) -> Expr {
    Expr::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        length: 2,
        to,
    }
}

fn meta(key: MetaKey, to: Register) -> Expr {
    Expr::Meta { key, to }
}

fn number(value: u32) -> Box<[u8]> {
    value.to_ne_bytes().into()
}

fn compare(op: Op, data: &[u8]) -> Expr {
    Expr::Compare {
        op,
        from: R0,
        data: data.into(),
    }
}

fn bitwise(mask: u32, xor: u32) -> Expr {
    Expr::Bitwise {
        from: R0,
        to: R0,
        mask: number(mask),
        xor: number(xor),
    }
}

fn set_mark() -> Expr {
    Expr::SetMeta {
        key: MetaKey::Mark,
        from: R0,
    }
}

fn lookup(set: &str, inverted: bool) -> Expr {
    Expr::Lookup {
        set: name(set),
        key: R0,
        inverted,
    }
}

fn verdict_of(map: &str) -> Expr {
    Expr::LookupVerdict {
        set: name(map),
        key: R0,
    }
}

fn numgen(modulus: u32, offset: u32, to: Register) -> Expr {
    Expr::Numgen { modulus, offset, to }
}

fn load(to: Register, data: &[u8]) -> Expr {
    Expr::Load {
        to,
        data: data.into(),
    }
}

fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(name(chain)))
}

fn goto(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(name(chain)))
}

const DNAT: Expr = Expr::Dnat {
    family: 2,
    address: R0,
    port: R1,
};

fn base_rules() -> Vec<Expected> {
    let mark = || meta(MetaKey::Mark, R0);
    let masquerade = Rule {
        comment: Some("masquerade".into()),
        ..rule(&[
            mark(),
            bitwise(0x4000, 0),
            compare(Op::NotEqual, &number(0)),
            mark(),
            bitwise(u32::MAX, 0x4000),
            set_mark(),
            Expr::Masquerade { fully_random: true },
        ])
    };
    let state = Expr::Ct {
        key: CtKey::State,
        to: R0,
    };
    let is_new = [state, bitwise(8, 0), compare(Op::NotEqual, &number(0))];
    vec![
        ("nat-prerouting", rule(&[jump("services")]), "jump services"),
        (
            "nat-postrouting",
            masquerade,
            "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random comment \"masquerade\"",
        ),
        (
            "filter-input",
            rule(&[&is_new[..], &[jump("checks")]].concat()),
            "ct state new jump checks",
        ),
        (
            "filter-output",
            rule(&[daddr(), lookup("cluster-ips", false), Expr::Reject { code: 3 }]),
            "ip daddr @cluster-ips reject",
        ),
        (
            "filter-output",
            rule(&[meta(MetaKey::L4Proto, R0), compare(Op::Equal, &[6]), Expr::Reset]),
            "reject with tcp reset",
        ),
        (
            "filter-output",
            rule(&[
                Expr::Ct {
                    key: CtKey::Packets,
                    to: R0,
                },
                Expr::ToNetworkOrder {
                    from: R0,
                    to: R0,
                    length: 8,
                },
                compare(Op::Greater, &20u64.to_be_bytes()),
                Expr::Verdict(Verdict::Return),
            ]),
            "ct packets > 20 return",
        ),
        (
            "filter-output",
            rule(&[saddr(4), lookup("ranges", true), Expr::Verdict(Verdict::Drop)]),
            "ip saddr != @ranges drop",
        ),
    ]
}

fn service_rules() -> Vec<Expected> {
    let input = || meta(MetaKey::InputName, R0);
    let from_own = Expr::FibType {
        flags: FibFlags::Source,
        to: R0,
    };
    vec![
        (
            "services",
            rule(&[
                saddr(1),
                compare(Op::NotEqual, &[10]),
                meta(MetaKey::Mark, R0),
                bitwise(!0x4000, 0x4000),
                set_mark(),
            ]),
            "ip saddr != 10.0.0.0/8 meta mark set meta mark | 0x00004000",
        ),
        (
            "services",
            rule(&[
                input(),
                compare(Op::Equal, b"br-x\0\0\0\0\0\0\0\0\0\0\0\0"),
                goto("lb-2"),
            ]),
            "iifname \"br-x\" goto lb-2",
        ),
        (
            "services",
            rule(&[input(), compare(Op::NotEqual, b"veth"), goto("lb-2")]),
            "iifname != \"veth*\" goto lb-2",
        ),
        (
            "services",
            rule(&[from_own, compare(Op::Equal, &number(2)), goto("lb-2")]),
            "fib saddr type local goto lb-2",
        ),
        (
            "services",
            rule(&[
                daddr(),
                meta(MetaKey::L4Proto, R1),
                dport(R2),
                verdict_of("service-ips"),
            ]),
            "ip daddr . meta l4proto . th dport vmap @service-ips",
        ),
        (
            "services",
            rule(&[
                daddr(),
                meta(MetaKey::L4Proto, R1),
                dport(R2),
                Expr::LookupData {
                    set: name("frontends"),
                    key: R0,
                    to: R0,
                },
                set_priority(),
                goto("lb-2"),
            ]),
            "meta priority set ip daddr . meta l4proto . th dport map @frontends goto lb-2",
        ),
        (
            "services",
            rule(&[meta(MetaKey::Priority, R0), verdict_of("balancers")]),
            "meta priority vmap @balancers",
        ),
        (
            "services",
            rule(&[load(R0, &number(0)), set_priority()]),
            "meta priority set none",
        ),
    ]
}

fn set_priority() -> Expr {
    Expr::SetMeta {
        key: MetaKey::Priority,
        from: R0,
    }
}

fn endpoint_rules() -> Vec<Expected> {
    let endpoint_of = Expr::LookupData {
        set: name("endpoints"),
        key: R0,
        to: R0,
    };
    let remember = Expr::Update {
        set: name("clients"),
        key: R0,
        data: R4,
        timeout: 10_800_000,
    };
    let forget = Expr::Forget {
        set: name("clients"),
        key: R0,
        data: R4,
    };
    let client = || [saddr(4), meta(MetaKey::Priority, R4)];
    vec![
        (
            "lb-2",
            rule(&[
                meta(MetaKey::L4Proto, R0),
                lookup("protocols", false),
                daddr(),
                meta(MetaKey::L4Proto, R1),
                dport(R2),
                numgen(2, 65536, R3),
                endpoint_of,
                DNAT,
            ]),
            "meta l4proto @protocols dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 offset 65536 map @endpoints",
        ),
        (
            "lb-2",
            rule(&[numgen(2, 0, R0), verdict_of("pick")]),
            "numgen random mod 2 vmap @pick",
        ),
        (
            "endpoint",
            rule(&[&client()[..], &[remember]].concat()),
            "update @clients { ip saddr timeout 3h : meta priority }",
        ),
        (
            "endpoint",
            rule(&[&client()[..], &[forget]].concat()),
            "delete @clients { ip saddr : meta priority }",
        ),
        (
            "endpoint",
            rule(&[
                meta(MetaKey::L4Proto, R0),
                compare(Op::Equal, &[6]),
                load(R0, &[10, 1, 0, 1]),
                load(R1, &8080u16.to_be_bytes()),
                DNAT,
            ]),
            "meta l4proto tcp dnat to 10.1.0.1:8080",
        ),
    ]
}

//! The way of a packet in each mode, station by station, and how it is drawn. What is in `backquotes` is a name that the
//! mode writes: the test looks for it in `tests/golden`.

use std::fmt::Write as _;

pub(crate) struct Station {
    pub(crate) place: &'static str,
    pub(crate) happens: &'static [&'static str],
}

const fn at(place: &'static str, happens: &'static [&'static str]) -> Station {
    Station { place, happens }
}

/// From a client's packet for a cluster IP to the endpoint.
pub(crate) const WAYS: [(&str, &[Station]); 4] = [
    (
        "nftables",
        &[
            at("client", &["sends to", "10.96.0.10:80"]),
            at(
                "prerouting",
                &[
                    "`nat-prerouting`",
                    "`services`",
                    "map `frontends`",
                    "map `endpoints`",
                    "dnat",
                ],
            ),
            at("routing", &["to the endpoint's", "address"]),
            at(
                "forward",
                &["`filter-forward`", "refuses what has", "no endpoints"],
            ),
            at(
                "postrouting",
                &["`nat-postrouting`", "`masquerading`", "if marked"],
            ),
            at("endpoint", &["10.244.1.2:8080"]),
        ],
    ),
    (
        "iptables",
        &[
            at("client", &["sends to", "10.96.0.10:80"]),
            at(
                "PREROUTING",
                &["`KUBE-SERVICES`", "`KUBE-SVC-`...", "`KUBE-SEP-`...", "DNAT"],
            ),
            at("routing", &["to the endpoint's", "address"]),
            at(
                "FORWARD",
                &[
                    "`KUBE-FORWARD`",
                    "`KUBE-SERVICES`",
                    "refuses what has",
                    "no endpoints",
                ],
            ),
            at(
                "POSTROUTING",
                &["`KUBE-POSTROUTING`", "if marked by", "`KUBE-MARK-MASQ`"],
            ),
            at("endpoint", &["10.244.1.2:8080"]),
        ],
    ),
    (
        "ipvs",
        &[
            at("client", &["sends to", "10.96.0.10:80"]),
            at(
                "PREROUTING",
                &["`KUBE-SERVICES`", "set `KUBE-CLUSTER-IP`", "marks"],
            ),
            at(
                "routing",
                &["to the node itself:", "the address is on", "`kube-ipvs0`"],
            ),
            at(
                "INPUT",
                &["IPVS: virtual server,", "real server", "by the scheduler"],
            ),
            at("POSTROUTING", &["`KUBE-POSTROUTING`", "if marked"]),
            at("endpoint", &["10.244.1.2:8080"]),
        ],
    ),
    (
        "userspace",
        &[
            at("client", &["sends to", "10.96.0.10:80"]),
            at(
                "PREROUTING",
                &["`KUBE-PORTALS-CONTAINER`", "leads to a port", "of the process"],
            ),
            at("routing", &["to the node itself"]),
            at("INPUT", &["`KUBE-NODEPORT-NON-LOCAL`", "guards such ports"]),
            at("ferry", &["accepts, chooses,", "connects, relays"]),
            at("endpoint", &["10.244.1.2:8080", "sees the node"]),
        ],
    ),
];

const WIDTH: usize = 208;
const GAP: usize = 24;
const LINE: usize = 17;

/// The picture of a way.
pub(crate) fn picture(mode: &str, stations: &[Station]) -> String {
    let most = stations.iter().map(|s| s.happens.len()).max().unwrap_or_default();
    let (width, height) = (stations.len() * (WIDTH + GAP) + GAP, 84 + most * LINE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>The way of a packet in {mode} mode</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (number, station) in stations.iter().enumerate() {
        let x = GAP + number * (WIDTH + GAP);
        let (middle, inside) = (x + WIDTH / 2, height - 2 * GAP);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{GAP}\" width=\"{WIDTH}\" height=\"{inside}\" rx=\"6\" fill=\"#eef3f8\" stroke=\"#33557a\"/>\n\
             <text x=\"{middle}\" y=\"46\" text-anchor=\"middle\" font-weight=\"bold\">{}</text>",
            station.place
        );
        for (line, text) in station.happens.iter().enumerate() {
            let y = 70 + line * LINE;
            let shown = text.replace('`', "");
            let _ = writeln!(
                svg,
                "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">{shown}</text>"
            );
        }
        if number > 0 {
            let (from, to, y) = (x - GAP, x - 2, 40);
            let _ = writeln!(
                svg,
                "<path d=\"M{from} {y}H{to}m-6 -4l6 4l-6 4\" fill=\"none\" stroke=\"#33557a\" stroke-width=\"2\"/>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

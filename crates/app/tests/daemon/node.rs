//! Looking at a whole node: flows, a bundle of everything, the live view, the pages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::house::{House, PATIENCE, service, slice};

/// A house whose endpoint is its own address, so that traffic to the service really flows.
fn house_with_traffic(label: &str) -> House {
    let house = House::build(label);
    house
        .node
        .ip("addr add 10.244.1.2/32 dev lo\nroute add 10.96.0.0/16 dev lo")
        .unwrap();
    house
        .api
        .apply([service("web", "10.96.0.10"), slice("web", "10.244.1.2")])
        .unwrap();
    house
}

/// Sends so many bytes through the service and gets them back; the connection stays open.
fn talk(house: &House, bytes: usize) -> (TcpStream, TcpStream) {
    house
        .node
        .run(|| {
            let listener = TcpListener::bind("10.244.1.2:8080").unwrap();
            let mut client = TcpStream::connect("10.96.0.10:80").unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let mut echo = vec![7; bytes];
            client.write_all(&echo).unwrap();
            server.read_exact(&mut echo).unwrap();
            server.write_all(&echo).unwrap();
            client.read_exact(&mut echo).unwrap();
            (client, server)
        })
        .unwrap()
}

#[test]
fn flows_are_told_by_service_with_what_they_carry() {
    let house = house_with_traffic("node-flows");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let (code, text) = house.ask(&["flows"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("no flow is known"), "{text}");
    assert!(
        text.contains("nf_conntrack_acct=1"),
        "bytes are not counted by default: {text}"
    );
    house.node.sysctl("net.netfilter.nf_conntrack_acct", "1").unwrap();
    let _open = talk(&house, 20_000);
    let (_, json) = house.ask(&["flows", "shop/web", "-o", "json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    let row = &report["rows"][0];
    assert_eq!(row["service"], "shop/web:http", "{json}");
    assert_eq!(row["frontend"], "10.96.0.10:80/tcp");
    assert_eq!(row["endpoint"], "10.244.1.2:8080");
    assert!(
        row["client"].as_str().unwrap().starts_with("this node ("),
        "{json}"
    );
    assert!(row["bytes"][0].as_u64().unwrap() > 20_000, "{json}");
    assert!(report.get("seconds").is_none());
    assert!(house.ask(&["flows", "shop/other"]).1.contains("no flow is known"));

    // While a connection opens, carries something and closes, its bytes count although it is gone at the end.
    let socket = house.socket();
    let mut watching = house
        .program(&[
            "flows",
            "--watch",
            "-o",
            "json",
            "--socket",
            socket.to_str().unwrap(),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let start = Instant::now();
    let seen = loop {
        assert!(start.elapsed() < PATIENCE, "no rate was seen");
        drop(talk(&house, 50_000));
        let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let rate = report["rows"][0]["rate"].clone();
        if rate["new"].as_f64().is_some_and(|new| new > 0.0) && rate["bytesTo"].as_f64().unwrap() > 1000.0 {
            break report;
        }
    };
    assert!((0.9..10.0).contains(&seen["seconds"].as_f64().unwrap()), "{seen}");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn a_relay_tells_its_own_connections() {
    let house = house_with_traffic("node-relay");
    let mut daemon = house.daemon_in("userspace", &[]);
    daemon.wait_synced();
    let _open = talk(&house, 1000);
    let (code, text) = house.ask(&["flows"]);
    assert_eq!(code, 0, "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("shop/web:http"))
        .unwrap();
    assert!(
        row.contains("10.244.1.2:8080") && row.trim_end().ends_with('-'),
        "{text}"
    );
}

const TOKEN: &str = "s3cr3t-bearer-token-of-the-daemon";
const PASSWORD: &str = "hunter2-of-the-proxy";

#[test]
fn a_bundle_is_read_elsewhere_and_holds_no_secret() {
    let house = house_with_traffic("node-bundle");
    let plain = house.api.kubeconfig(house.dir.path()).unwrap();
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&plain).unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "token": TOKEN });
    // A second cluster that nobody can reach: what is said about it must not tell the password.
    let kubeconfig = house.path("with-token.conf");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let mut daemon = house.daemon(&[&kubeconfig]);
    daemon.wait_synced();
    house
        .node
        .sh(&format!(
            "nft 'add table ip other; add chain ip other c {{ comment \"http://joe:{PASSWORD}@proxy:3128\" ; }}'"
        ))
        .unwrap();
    let file = house.path("node.tar");
    let path = file.to_str().unwrap();
    let (code, said) = house.ask(&["bundle", "--file", path]);
    assert_eq!(code, 0, "{said}");
    let bytes = std::fs::read(&file).unwrap();
    for secret in [TOKEN, PASSWORD] {
        assert!(
            !bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes()),
            "{secret}"
        );
    }
    let listed = house.node.sh(&format!("tar tf {path}")).unwrap();
    for name in [
        "facts.json",
        "plan.json",
        "history.txt",
        "configuration.yaml",
        "kernel/nftables.txt",
        "version.json",
    ] {
        assert!(
            listed.contains(&format!("ferry-bundle/{name}\n")),
            "{name}: {listed}"
        );
    }
    assert_eq!(
        house.ask(&["bundle", "--file", path]).0,
        1,
        "what is there is not written over"
    );
    assert_eq!(daemon.terminate(), Some(0));

    // Elsewhere: no daemon, another place.
    let read = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_ferry"))
            .args(args)
            .args(["--bundle", path])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said.into_owned())
    };
    let from_bundle: Value = serde_json::from_str(&read(&["plan", "-o", "json"]).1).unwrap();
    let told = house
        .node
        .sh(&format!("tar xOf {path} ferry-bundle/plan.json"))
        .unwrap();
    assert_eq!(
        from_bundle,
        serde_json::from_str::<Value>(&told).unwrap(),
        "the plan is the same"
    );
    let (_, trace) = read(&["trace", "--from", "10.244.9.9", "--to", "10.96.0.10:80"]);
    assert!(trace.contains("-> 10.244.1.2:8080"), "{trace}");
    let (code, explained) = read(&["explain", "shop/web"]);
    assert_eq!(code, Some(0), "{explained}");
    assert_eq!(read(&["compare", "--mode", "userspace"]).0, Some(1));
    let (code, wrong) = read(&["plan", "--manifests", "/"]);
    assert_eq!(code, Some(1));
    assert!(
        wrong.contains("--bundle and --manifests exclude each other"),
        "{wrong}"
    );
    std::fs::write(&file, "no archive").unwrap();
    assert!(read(&["plan"]).1.contains("it is no tar archive"));
}

/// The live view in a terminal of 80 by 24, made by script(1).
struct Terminal {
    child: Child,
    shown: std::sync::mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn open(house: &House, environment: &str) -> Self {
        let (ferry, socket) = (env!("CARGO_BIN_EXE_ferry"), house.socket());
        let line = format!(
            "stty rows 24 cols 80; stty -g; {environment} {ferry} status --watch --socket {}; echo exit $?; stty -g",
            socket.display()
        );
        let mut child = std::process::Command::new("script")
            .args(["-qefc", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (tell, shown) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                if tell.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            shown,
            seen: String::new(),
        }
    }

    fn press(&mut self, keys: &str) {
        self.seen.clear();
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(keys.as_bytes())
            .unwrap();
    }

    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        while !self.seen.contains(text) {
            assert!(
                start.elapsed() < PATIENCE,
                "{text:?} was not shown:\n{:?}",
                self.seen
            );
            if let Ok(bytes) = self.shown.recv_timeout(Duration::from_millis(200)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}

#[test]
fn the_live_view_follows_keys_and_leaves_the_terminal_as_it_was() {
    let house = house_with_traffic("node-watch");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let mut terminal = Terminal::open(&house, "");
    terminal.wait_for("shop/web:http");
    let settings = terminal.seen.lines().next().unwrap().trim().to_owned();
    assert!(terminal.seen.contains("\x1b[?1049h"), "{:?}", terminal.seen);
    assert!(
        terminal.seen.contains("\x1b[7mshop/web:http"),
        "the row is marked: {:?}",
        terminal.seen
    );
    let frame = terminal
        .seen
        .rsplit("\x1b[H")
        .next()
        .unwrap()
        .replace("\x1b[K", "");
    for line in frame.split("\r\n") {
        let plain = line
            .replace("\x1b[7m", "")
            .replace("\x1b[1m", "")
            .replace("\x1b[0m", "");
        assert!(plain.replace("\x1b[J", "").chars().count() <= 80, "{plain:?}");
    }
    terminal.press("\r");
    terminal.wait_for("-> 10.244.1.2:8080 ready");
    terminal.press("h");
    terminal.wait_for("listed everything");
    terminal.press("f");
    terminal.wait_for("no flow is known");
    terminal.press("\x1b");
    terminal.wait_for("SERVICE");
    terminal.press("/nothing\r");
    terminal.wait_for("/ filter (nothing)");
    terminal.press("q");
    terminal.wait_for("exit 0");
    terminal.wait_for(&settings);
    assert!(terminal.seen.contains("\x1b[?1049l"), "{:?}", terminal.seen);
    terminal.child.wait().unwrap();

    let mut plain = Terminal::open(&house, "NO_COLOR=1 timeout --foreground 3");
    plain.wait_for(">hop/web:http");
    assert!(!plain.seen.contains("\x1b[7m") && !plain.seen.contains("\x1b[1m"));
    // The signal of timeout(1) ends it as a key would.
    plain.wait_for("\x1b[?1049l");
    plain.child.wait().unwrap();

    let mut dumb = Terminal::open(&house, "TERM=dumb timeout --foreground 3");
    dumb.wait_for("SERVICE        ADDRESS");
    assert!(!dumb.seen.contains('\x1b'), "{:?}", dumb.seen);
    dumb.child.wait().unwrap();
}

/// `ferry web` on a port that the system chose.
struct Web<'a> {
    house: &'a House,
    child: Child,
    address: SocketAddr,
}

impl<'a> Web<'a> {
    fn start(house: &'a House) -> Self {
        let socket = house.socket();
        let mut child = house
            .program(&[
                "web",
                "--listen",
                "127.0.0.1:0",
                "--socket",
                socket.to_str().unwrap(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/');
        let address = address.parse().unwrap();
        Self {
            house,
            child,
            address,
        }
    }

    fn request(&self, line: &str, headers: &str) -> String {
        let address = self.address;
        let asked = self.house.node.run(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        asked.unwrap()
    }

    fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path}"), &format!("Host: {}\r\n", self.address))
    }
}

impl Drop for Web<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pages_tell_everything_change_nothing_and_let_nothing_in() {
    let house = house_with_traffic("node-web");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let _open = talk(&house, 1000);
    let web = Web::start(&house);
    let home = web.get("/");
    assert!(home.starts_with("HTTP/1.1 200"), "{home}");
    assert!(home.contains("default-src 'none'"), "{home}");
    assert!(
        home.contains("<a href=\"/service/shop/web\">shop/web:http</a>"),
        "{home}"
    );
    let page = web.get("/service/shop/web");
    for part in [
        "<svg",
        "10.96.0.10:80/tcp cluster IP",
        "10.244.1.2:8080",
        "this node (",
        "<h2>history</h2>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let trace = web.get("/trace?from=10.244.9.9&to=10.96.0.10%3A80");
    assert!(
        trace.contains("the way of the packet") && trace.contains("10.244.1.2:8080"),
        "{trace}"
    );
    assert!(web.get("/trace?from=x&to=y").contains("must be an IP address"));
    assert!(web.get("/history").contains("listed everything"));
    let news = web.get("/events");
    assert!(
        news.contains("text/event-stream") && news.contains("\ndata: "),
        "{news}"
    );
    let bad = web.get("/?filter=%3Cscript%3E%22");
    assert!(
        bad.contains("value=\"&lt;script&gt;&quot;\"") && !bad.contains("<script>\""),
        "{bad}"
    );
    assert!(web.get("/service/shop/none").starts_with("HTTP/1.1 404"));
    assert!(
        web.request("POST /", "Host: localhost\r\nContent-Length: 0\r\n")
            .starts_with("HTTP/1.1 405")
    );
    assert!(
        web.request("GET /", "Host: evil.example\r\n")
            .starts_with("HTTP/1.1 403")
    );
    let (code, refused) = house.ask(&["web", "--listen", "192.0.2.10:0"]);
    assert_eq!(code, 1);
    assert!(refused.contains("is not a loopback address"), "{refused}");
}

/// A real browser: script runs under the policy, events arrive, and the picture is drawn.
#[test]
fn a_browser_draws_the_pages_and_hears_of_changes() {
    let house = house_with_traffic("node-browser");
    let mut daemon = house.daemon(&[]);
    daemon.wait_synced();
    let _open = talk(&house, 1000);
    let web = Web::start(&house);
    let profile = house.path("browser");
    let shot = house.path("map.png");
    let browse = |what: &[&str], page: &str| {
        let url = format!("http://{}{page}", web.address);
        let output = house
            .node
            .command("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--window-size=1200,1000",
                // Less than the pause before a browser asks for more news: time stands still while it waits for that.
                "--virtual-time-budget=400",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(what)
            .arg(&url)
            .output()
            .unwrap();
        let (page, log) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(!log.contains("Refused to") && !log.contains("violates"), "{log}");
        page.into_owned()
    };
    let page = browse(&["--dump-dom"], "/service/shop/web");
    assert!(
        page.contains("<span id=\"live\">live</span>"),
        "script ran and an event came: {page}"
    );
    assert!(page.contains("10.244.1.2:8080"), "{page}");
    let to = format!("--screenshot={}", shot.display());
    browse(&[&to], "/service/shop/web");
    let picture = std::fs::read(&shot).unwrap();
    assert!(
        picture.starts_with(b"\x89PNG") && picture.len() > 5000,
        "{}",
        picture.len()
    );
    if let Some(keep) = std::env::var_os("FERRY_SCREENSHOTS") {
        for (name, page) in [
            ("map", "/service/shop/web"),
            ("services", "/"),
            ("trace", "/trace?from=10.244.9.9&to=10.96.0.10:80"),
        ] {
            let to = std::path::Path::new(&keep).join(format!("{name}.png"));
            browse(&[&format!("--screenshot={}", to.display())], page);
        }
    }
}

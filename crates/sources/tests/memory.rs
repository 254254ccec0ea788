//! What a large answer needs of memory: what its facts need, and an object's worth beside.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ferry_lab::api::protobuf;
use ferry_lab::wait_until;
use ferry_sources::kube::{Connection, Encoding, KubeSource};
use ferry_sources::{Kind, Mailbox};
use serde_json::json;

/// As much as is sent, of each sort.
const ANSWER: usize = 64 << 20;

/// How an API server answers a request for everything.
#[derive(Clone, Copy, Debug)]
enum Answer {
    List,
    Stream,
}

/// A service with as much text beside what is in use as makes it this long.
fn service(number: usize, length: usize) -> String {
    let (a, b) = (number / 250 % 250, number % 250);
    format!(
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"s{number}","namespace":"n","resourceVersion":"5","managedFields":[{}"{}"]}},"spec":{{"clusterIP":"10.96.{a}.{b}","ports":[{{"port":80}}]}}}}"#,
        r#"{"f:spec":{"f:ports":{}}},"#.repeat(length / 2 / 27),
        "x".repeat(length / 2),
    )
}

/// The same in protobuf.
fn protobuf_service(number: usize, length: usize) -> Vec<u8> {
    let (a, b) = (number / 250 % 250, number % 250);
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{number}"), "namespace": "n", "resourceVersion": "5",
                     "annotations": {"x": "x".repeat(length / 2), "y": "y".repeat(length / 2)}},
        "spec": {"clusterIP": format!("10.96.{a}.{b}"), "ports": [{"port": 80}]},
    });
    protobuf::encode(&object).unwrap()
}

/// Answers every request, an object at a time.
fn serve(listener: &TcpListener, answer: Answer, encoding: Encoding, length: usize) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::spawn(move || drop(converse(stream, answer, encoding, length)));
    }
}

fn converse(mut stream: TcpStream, answer: Answer, encoding: Encoding, length: usize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines
        .next()
        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
    {}
    let count = if request.contains("/services") {
        ANSWER / length
    } else {
        0
    };
    let kind = ["Service", "EndpointSlice", "Node", "ServiceCIDR"]
        .into_iter()
        .find(|kind| request.contains(&format!("/{}s?", kind.to_lowercase())))
        .unwrap_or("ServiceCIDR");
    let is_stream = request.contains("sendInitialEvents");
    if is_stream && matches!(answer, Answer::List) {
        return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    }
    if encoding == Encoding::Protobuf && count > 0 {
        return converse_in_protobuf(stream, is_stream, count, length);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")?;
    if is_stream {
        for number in 0..count {
            stream.write_all(
                format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", service(number, length)).as_bytes(),
            )?;
        }
        let end = r#"{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}"#;
        stream
            .write_all(format!("{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{end}}}}}\n").as_bytes())?;
    } else if !request.contains("watch=true") {
        stream.write_all(
            format!(r#"{{"kind":"{kind}List","metadata":{{"resourceVersion":"7"}},"items":["#).as_bytes(),
        )?;
        for number in 0..count {
            let comma = if number > 0 { "," } else { "" };
            stream.write_all(format!("{comma}{}", service(number, length)).as_bytes())?;
        }
        return stream.write_all(b"]}");
    }
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// The same for the services. All of them are equally long, which the length of a list needs to know beforehand.
fn converse_in_protobuf(
    mut stream: TcpStream,
    is_stream: bool,
    count: usize,
    length: usize,
) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.kubernetes.protobuf\r\nConnection: close\r\n\r\n",
    )?;
    let items = (0..count).map(|number| protobuf_service(number, length));
    if is_stream {
        for item in items {
            stream.write_all(&protobuf::event("ADDED", &protobuf::wrap("v1", "Service", &item)))?;
        }
        let end = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        let end = protobuf::encode(&end).unwrap();
        stream.write_all(&protobuf::event(
            "BOOKMARK",
            &protobuf::wrap("v1", "Service", &end),
        ))?;
        std::thread::sleep(Duration::from_secs(3600));
        return Ok(());
    }
    let nothing = protobuf::list(&json!({}), &[]).unwrap().len();
    let as_item = |item: Vec<u8>| protobuf::list(&json!({}), &[&item]).unwrap().split_off(nothing);
    let meta = protobuf::list(&json!({"resourceVersion": "7"}), &[]).unwrap();
    let total = meta.len() + items.clone().map(|item| as_item(item).len()).sum::<usize>();
    let wrapped = protobuf::wrap("v1", "ServiceList", &[]);
    // In place of the length of nothing stands that of the list.
    let (head, tail) = wrapped.split_at(wrapped.len() - 4);
    stream.write_all(&head[..head.len() - 1])?;
    let groups: Vec<usize> = (0..10)
        .map(|n| total >> (7 * n))
        .take_while(|rest| *rest > 0)
        .collect();
    let length = groups
        .iter()
        .map(|rest| (rest & 0x7f) as u8 | if *rest > 0x7f { 0x80 } else { 0 });
    stream.write_all(&length.collect::<Vec<u8>>())?;
    stream.write_all(&meta)?;
    for item in items {
        stream.write_all(&as_item(item))?;
    }
    stream.write_all(tail)
}

/// The largest size of this process so far.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_large_answer_is_never_held() {
    let before = peak();
    // Objects that are as large as can be, and usual ones. Each of them becomes a fact of some hundred bytes.
    let encodings = [Encoding::Json, Encoding::Protobuf];
    for (length, encoding) in [1 << 20, 4 << 10]
        .into_iter()
        .flat_map(|length| encodings.map(|one| (length, one)))
    {
        for answer in [Answer::List, Answer::Stream] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let master = format!("http://{}", listener.local_addr().unwrap());
            std::thread::spawn(move || serve(&listener, answer, encoding, length));
            let mailbox = Arc::new(Mailbox::new(&Kind::ALL));
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let connection = Connection {
                master: Some(master),
                ..Connection::default()
            };
            let api = connection.connect().unwrap();
            runtime.spawn(KubeSource::new(api, "node-a").run(mailbox.clone()));
            assert!(
                wait_until(Duration::from_secs(120), || mailbox.is_open()),
                "{:?}",
                mailbox.problems()
            );
            assert_eq!(mailbox.take().events.len(), ANSWER / length);
            let grown = peak() - before;
            assert!(
                grown < ANSWER,
                "{answer:?} of {length} in {encoding:?}: {grown} bytes more"
            );
        }
    }
}

//! Requests in, answers out.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::kinds::{self, Kind, Target};
use super::query::Query;
use super::selector::Selector;
use super::store::{self, Object, Seen, Store};
use super::watch::{Encoding, Watch, value_event};
use super::{Faults, Protobuf, discovery, protobuf, table};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Serves connections until the task is aborted, which closes all of them.
pub(super) async fn accept(listener: TcpListener, store: Arc<Store>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let store = Arc::clone(&store);
        let service = service_fn(move |request| {
            let store = Arc::clone(&store);
            async move { Ok::<_, Infallible>(handle(request, store).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service);
        open.spawn(async move {
            // a client that goes away in the middle is no news
            let _ = connection.await;
        });
    }
}

async fn handle(request: Request<Incoming>, store: Arc<Store>) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let Ok(body) = body.collect().await else {
        return failure(400, "BadRequest", "the body ended early");
    };
    let body = body.to_bytes();
    if let Some(name) = path.strip_prefix("/_") {
        return control(name, &body, &store);
    }
    let text = |name| {
        head.headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    store.saw(Seen {
        method: head.method.to_string(),
        path: head
            .uri
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default(),
        user_agent: text(header::USER_AGENT),
        accept: text(header::ACCEPT),
    });
    let faults = store.faults();
    if faults.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(faults.delay_ms)).await;
    }
    if let Some(code) = faults.code {
        return failure(code, "InternalError", "the lab was told to fail");
    }
    if matches!(path.as_str(), "/healthz" | "/readyz" | "/livez") {
        return plain(200, "text/plain", "ok");
    }
    if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" && head.method == Method::POST {
        return access_review(&body, &faults);
    }
    if let Some(answer) = discovery::answer(&path, &faults.missing) {
        return json_answer(200, &answer);
    }
    let Some(target) = kinds::of_path(&path).filter(|t| !faults.missing.contains(t.kind.plural)) else {
        return failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
    };
    if let Some(code) = store.take_refusal(target.kind) {
        return failure(code, "Refused", "the lab was told to refuse this once");
    }
    if faults.forbidden.contains(target.kind.plural) {
        let message = format!("{} is forbidden: User \"lab\" cannot do that", target.kind.plural);
        return failure(403, "Forbidden", &message);
    }
    match head.method {
        Method::GET => {
            let accept = text(header::ACCEPT);
            if protobuf::wanted(&accept) && faults.protobuf == Some(Protobuf::Refused) {
                return failure(
                    406,
                    "NotAcceptable",
                    "only the following media types are accepted: application/json",
                );
            }
            in_protobuf(read(&target, &query, &accept, &store, &faults), &accept, &faults)
        }
        method => write(&method, &target, &head.headers, &body, &store),
    }
}

/// A failure is told in the form that was asked for.
fn in_protobuf(answer: Answer, accept: &str, faults: &Faults) -> Answer {
    let Some(Failure(status)) = answer.extensions().get() else {
        return answer;
    };
    match protobuf::encode(status) {
        Ok(bytes) if protobuf::wanted(accept) && faults.protobuf.is_none() => {
            let wrapped = protobuf::wrap("v1", "Status", &bytes);
            self::bytes(answer.status().as_u16(), protobuf::CONTENT_TYPE, wrapped.into())
        }
        _ => answer,
    }
}

/// How a kind is written for a client that accepts this.
fn encoding(kind: &'static Kind, accept: &str, store: &Store, faults: &Faults) -> Encoding {
    let is_wanted = protobuf::wanted(accept) && faults.protobuf.is_none();
    if is_wanted && store.has_protobuf(kind) {
        Encoding::Protobuf
    } else {
        Encoding::Json
    }
}

/// Whether the client may do something: all but what it was forbidden.
fn access_review(body: &Bytes, faults: &Faults) -> Answer {
    let Ok(mut review) = serde_json::from_slice::<Value>(body) else {
        return failure(400, "BadRequest", "the body is no JSON");
    };
    let asked = review["spec"]["resourceAttributes"]["resource"].as_str();
    let allowed = asked.is_some_and(|resource| !faults.forbidden.contains(resource));
    review["status"] = json!({"allowed": allowed});
    json_answer(201, &review)
}

fn read(target: &Target<'_>, query: &Query, accept: &str, store: &Arc<Store>, faults: &Faults) -> Answer {
    if let Some(name) = target.name {
        return match store.get(target.kind, target.namespace.unwrap_or_default(), name) {
            Some(object) => bytes(200, "application/json", object.json.clone()),
            None => failure(
                404,
                "NotFound",
                &format!("{} \"{name}\" not found", target.kind.plural),
            ),
        };
    }
    let selector = Selector::parse(
        query.get("labelSelector"),
        query.get("fieldSelector"),
        target.kind,
    );
    let selector = match selector {
        Ok(selector) => selector,
        Err(why) => return failure(400, "BadRequest", &why),
    };
    if let Some(garbage) = faults.garbage {
        return bytes(200, "application/json", garbage.body().into());
    }
    let encoding = encoding(target.kind, accept, store, faults);
    let answer = if query.is_set("watch") {
        watch(target, selector, query, encoding, store, faults)
    } else {
        list(target, &selector, query, accept, encoding, store)
    };
    let answer = if faults.truncate_lists && !query.is_set("watch") {
        truncated(answer)
    } else {
        answer
    };
    if faults.protobuf == Some(Protobuf::Pretended) && protobuf::wanted(accept) {
        pretended(answer)
    } else {
        answer
    }
}

/// The same answer under another name.
fn pretended(mut answer: Answer) -> Answer {
    let kind = HeaderValue::from_static(protobuf::CONTENT_TYPE);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn watch(
    target: &Target<'_>,
    selector: Selector,
    query: &Query,
    encoding: Encoding,
    store: &Arc<Store>,
    faults: &Faults,
) -> Answer {
    let kind = match encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
    };
    if query.is_set("sendInitialEvents") {
        let invalid = |why: &str| {
            let message = format!("ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: {why}");
            failure(422, "Invalid", &message)
        };
        if let Some(code) = faults.streaming_lists_code {
            let why = "the required storage feature RequestWatchProgress is disabled";
            let event = value_event("ERROR", &status(code, "InternalError", why), encoding);
            return bytes(200, kind, event.unwrap_or_default());
        }
        if faults.no_streaming_lists {
            return invalid(
                "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
            );
        }
        if query.get("resourceVersionMatch") != "NotOlderThan" {
            return invalid(
                "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
    }
    if faults.ended.contains(target.kind.plural) {
        return bytes(200, kind, Bytes::new());
    }
    let watch = Watch::new(target.kind, target.namespace, selector, query, faults, encoding);
    let (to, from) = mpsc::channel(256);
    tokio::spawn(watch.run(Arc::clone(store), to));
    let frames = futures::stream::unfold(from, |mut from| async {
        let line: Bytes = from.recv().await?;
        Some((Ok(Frame::data(line)), from))
    });
    respond(200, kind, StreamBody::new(frames).boxed_unsync())
}

fn list(
    target: &Target<'_>,
    selector: &Selector,
    query: &Query,
    accept: &str,
    encoding: Encoding,
    store: &Store,
) -> Answer {
    let kind = target.kind;
    let token = query.get("continue");
    let numbers = token
        .split_once(':')
        .and_then(|(list, at)| Some((list.parse().ok()?, at.parse().ok()?)));
    let (version, objects, start): (u64, Vec<Arc<Object>>, usize) = match numbers {
        None if token.is_empty() => {
            let (version, objects) = store.list(kind);
            let covers = |o: &Arc<Object>| {
                target.namespace.is_none_or(|ns| ns == o.namespace()) && selector.selects(&o.value)
            };
            (version, objects.into_iter().filter(covers).collect(), 0)
        }
        None => return failure(400, "BadRequest", "continue key is not valid"),
        Some((list, at)) => match store.pages(list) {
            Some((version, objects)) => (version, objects, at),
            None => return failure(410, "Expired", "The provided continue parameter is too old"),
        },
    };
    let limit = query
        .number("limit")
        .filter(|l| *l > 0)
        .map_or(usize::MAX, |l| l as usize);
    let end = start.saturating_add(limit).min(objects.len());
    let page = &objects[start.min(end)..end];
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if end < objects.len() {
        let list = match numbers {
            Some((list, _)) => list,
            None => store.keep_pages(version, objects.clone()),
        };
        metadata["continue"] = format!("{list}:{end}").into();
        if selector.is_empty() {
            metadata["remainingItemCount"] = (objects.len() - end).into();
        }
    }
    if table::wanted(accept) {
        let rows: Vec<&Object> = page.iter().map(Arc::as_ref).collect();
        return json_answer(200, &table::render(kind, version, &rows, store.age()));
    }
    if encoding == Encoding::Protobuf
        && let Some(body) = protobuf_list(kind, &metadata, page)
    {
        return bytes(200, protobuf::CONTENT_TYPE, body);
    }
    bytes(200, "application/json", list_body(kind, &metadata, page))
}

fn protobuf_list(kind: &Kind, metadata: &Value, page: &[Arc<Object>]) -> Option<Bytes> {
    let items: Option<Vec<&[u8]>> = page.iter().map(|object| object.protobuf.as_deref()).collect();
    let list = protobuf::list(metadata, &items?).ok()?;
    Some(protobuf::wrap(&kind.api_version(), &format!("{}List", kind.kind), &list).into())
}

fn list_body(kind: &Kind, metadata: &Value, page: &[Arc<Object>]) -> Bytes {
    let size: usize = page.iter().map(|o| o.json.len() + 1).sum();
    let mut body = Vec::with_capacity(size + 256);
    let head = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        kind.kind,
        kind.api_version()
    );
    body.extend_from_slice(head.as_bytes());
    for (i, object) in page.iter().enumerate() {
        if i > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&object.json);
    }
    body.extend_from_slice(b"]}\n");
    body.into()
}

fn write(method: &Method, target: &Target<'_>, headers: &HeaderMap, body: &Bytes, store: &Store) -> Answer {
    if headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|t| t == "application/vnd.kubernetes.protobuf")
    {
        return failure(415, "UnsupportedMediaType", "the lab's server reads JSON only");
    }
    if *method == Method::DELETE {
        return remove(target, store);
    }
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
        return failure(400, "BadRequest", "the body is no JSON");
    };
    if *method == Method::PATCH
        && let Some(name) = target.name
    {
        if target.kind.is_event() {
            object["metadata"]["name"] = name.into();
        } else if let Some(old) = store.get(target.kind, target.namespace.unwrap_or_default(), name) {
            let mut merged = old.value.clone();
            store::merge(&mut merged, &object);
            object = merged;
        } else {
            return failure(
                404,
                "NotFound",
                &format!("{} \"{name}\" not found", target.kind.plural),
            );
        }
    }
    if target.kind.is_event() {
        store.write_event(object.clone());
        return json_answer(if *method == Method::POST { 201 } else { 200 }, &object);
    }
    if let (Some(namespace), true) = (target.namespace, target.kind.namespaced) {
        object["metadata"]["namespace"] = namespace.into();
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let exists = store
        .get(target.kind, target.namespace.unwrap_or_default(), &name)
        .is_some();
    if exists && *method == Method::POST {
        let message = format!("{} \"{name}\" already exists", target.kind.plural);
        return failure(409, "AlreadyExists", &message);
    }
    match store.apply(object) {
        Ok(object) => bytes(
            if exists { 200 } else { 201 },
            "application/json",
            object.json.clone(),
        ),
        Err(e) => failure(422, "Invalid", &e.to_string()),
    }
}

fn remove(target: &Target<'_>, store: &Store) -> Answer {
    let name = target.name.unwrap_or_default();
    let found = store.get(target.kind, target.namespace.unwrap_or_default(), name);
    match found.map(|object| store.delete(&object.value)) {
        Some(Ok(())) => json_answer(
            200,
            &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        ),
        Some(Err(e)) => failure(500, "InternalError", &e.to_string()),
        None => failure(
            404,
            "NotFound",
            &format!("{} \"{name}\" not found", target.kind.plural),
        ),
    }
}

/// What a test in another process does with [`super::Api`]'s methods, it does here with HTTP.
fn control(name: &str, body: &[u8], store: &Store) -> Answer {
    let objects = || serde_json::from_slice::<Vec<Value>>(body).map_err(anyhow::Error::from);
    let done = match name {
        "apply" => objects().and_then(|list| list.into_iter().try_for_each(|o| store.apply(o).map(drop))),
        "delete" => objects().and_then(|list| list.iter().try_for_each(|o| store.delete(o))),
        "close" | "cut" => {
            store.cut();
            Ok(())
        }
        "expire" => {
            store.expire();
            Ok(())
        }
        "rewind" => serde_json::from_slice(body)
            .map(|version| store.rewind(version))
            .map_err(anyhow::Error::from),
        "bookmark" => {
            store.bookmark();
            Ok(())
        }
        "faults" => serde_json::from_slice(body)
            .map(|f| store.set_faults(f))
            .map_err(anyhow::Error::from),
        "events" => return json_answer(200, &json!(store.events())),
        "requests" => return json_answer(200, &json!(store.requests())),
        _ => return failure(404, "NotFound", "no such control"),
    };
    match done {
        Ok(()) => json_answer(200, &json!({"ok": true})),
        Err(e) => failure(400, "BadRequest", &format!("{e:#}")),
    }
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = status(code, reason, message);
    let mut answer = json_answer(code, &status);
    answer.extensions_mut().insert(Failure(status));
    answer
}

/// The Status of an answer that is a failure.
#[derive(Debug, Clone)]
struct Failure(Value);

fn json_answer(code: u16, value: &Value) -> Answer {
    bytes(code, "application/json", value.to_string().into())
}

fn plain(code: u16, kind: &str, text: &'static str) -> Answer {
    bytes(code, kind, Bytes::from_static(text.as_bytes()))
}

fn bytes(code: u16, kind: &str, body: Bytes) -> Answer {
    respond(
        code,
        kind,
        Full::new(body).map_err(|never| match never {}).boxed_unsync(),
    )
}

/// The same answer, whose connection breaks in the middle of the body.
fn truncated(answer: Answer) -> Answer {
    let (head, body) = answer.into_parts();
    let half = futures::stream::once(async {
        let whole = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        Ok(Frame::data(whole.slice(..whole.len() / 2)))
    });
    let end = futures::stream::once(async {
        // an error at once would take the half with it
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err(io::Error::other("the lab was told to break off"))
    });
    Response::from_parts(head, StreamBody::new(half.chain(end)).boxed_unsync())
}

fn respond(code: u16, kind: &str, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(kind) = kind.parse() {
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    answer
}

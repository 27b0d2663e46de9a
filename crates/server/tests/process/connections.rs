//! What connects to a port: HTTP and gRPC, with TLS and without, and what is none of these.

use std::time::Duration;

use eddy_crdt::AlarmKind;
use eddy_proto::etcdserverpb::RangeRequest;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tonic::Code;

use crate::support::{ANY_PORT, Options, PATIENCE, Server, body, eventually, get, write};
use crate::tls::raw_handshake;

/// Reads until the other side closes; fails if it does not.
async fn closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is as good an end as a close.
    let _end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server must close");
}

async fn unimplemented(server: &Server) -> String {
    let mut client = KvClient::connect(format!("http://{}", server.grpc[0])).await.unwrap();
    let status = client.range(RangeRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    status.message().to_owned()
}

#[tokio::test]
async fn http_and_grpc_share_a_port() {
    let server = Server::start(ANY_PORT).await;
    assert_eq!(unimplemented(&server).await, "eddy: this RPC of etcd is not built yet");
    let answer = server.get("/version").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(body(&answer), r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#);
    assert!(server.get("/nothing").await.ends_with("\r\n\r\n404 page not found\n"));
    let answer = server.get("/v3/kv/range").await;
    assert!(answer.starts_with("HTTP/1.1 501 "), "{answer}");
    assert_eq!(body(&answer), r#"{"code":12,"message":"Method Not Allowed"}"#);
    let without = Server::start(&[ANY_PORT, &["--enable-grpc-gateway=false"]].concat()).await;
    assert!(without.get("/v3/kv/range").await.ends_with("\r\n\r\n404 page not found\n"));
}

#[tokio::test]
async fn https_and_http_share_a_port_and_so_do_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let socket = dir.path().join("eddy.sock");
    let urls = format!(
        "http://127.0.0.1:{port},https://127.0.0.1:{port},unix://{socket},unixs://{socket}",
        socket = socket.display()
    );
    let server = Server::start(&[
        &format!("--listen-client-urls={urls}"),
        "--advertise-client-urls=http://127.0.0.1:1",
        "--auto-tls",
        &format!("--data-dir={}", dir.path().display()),
    ])
    .await;
    let tcp = async || TcpStream::connect(server.grpc[0]).await.unwrap();
    let unix = async || UnixStream::connect(&socket).await.unwrap();
    let answers = [
        get(tcp().await, "/health").await.unwrap(),
        get(unix().await, "/health").await.unwrap(),
        get(raw_handshake(tcp().await).await, "/health").await.unwrap(),
        get(raw_handshake(unix().await).await, "/health").await.unwrap(),
    ];
    for answer in answers {
        assert_eq!(body(&answer), r#"{"health":"true","reason":""}"#);
    }
    assert_eq!(server.grpc, [([127, 0, 0, 1], port).into()], "one listener for both");
}

#[tokio::test]
async fn a_unix_socket_replaces_a_stale_one_and_goes_with_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("eddy.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a socket file outlives its listener");
    let url = format!("unix://{}", path.display());
    let flags = [format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")];
    let server = Server::start(&[&flags[0], &flags[1]]).await;
    let answer = get(UnixStream::connect(&path).await.unwrap(), "/health").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"));
    eddy_server::run::drain(&server.stop, server.tracker).await;
    assert!(!path.exists());

    let file = write(dir.path(), "data", "not a socket");
    let flags = [format!("--listen-client-urls=unix://{file}"), "--advertise-client-urls=http://a:1".to_owned()];
    let config = crate::support::config(&["--listen-peer-urls=http://127.0.0.1:0", &flags[0], &flags[1]]);
    assert!(Server::try_with(&config, Options::default()).await.is_err(), "a file that is no socket is not removed");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "not a socket");
}

#[tokio::test]
async fn http_can_have_its_own_port() {
    let flags =
        [ANY_PORT, &["--listen-client-http-urls=http://127.0.0.1:0", "--listen-metrics-urls=http://127.0.0.1:0"]];
    let server = Server::start(&flags.concat()).await;
    assert!(server.get("/health").await.starts_with("HTTP/1.1 200"));
    let on_grpc_port = get(TcpStream::connect(server.grpc[0]).await.unwrap(), "/health").await.unwrap();
    assert!(on_grpc_port.starts_with("HTTP/1.1 404"), "{on_grpc_port}");
    assert_eq!(unimplemented(&server).await, "eddy: this RPC of etcd is not built yet");
    let metrics = async |path| get(TcpStream::connect(server.metrics_only[0]).await.unwrap(), path).await.unwrap();
    assert!(metrics("/metrics").await.contains("\netcd_server_has_leader 1\n"));
    assert!(metrics("/readyz").await.ends_with("\r\n\r\nok\n"));
    assert!(metrics("/version").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn others_are_served_beside_garbage_half_handshakes_and_slow_headers() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = format!("--data-dir={}", dir.path().display());
    let options = Options { header_timeout: Duration::from_millis(300), ..Options::default() };
    let flags = [
        "--listen-client-urls=http://127.0.0.1:0,https://localhost:0",
        "--advertise-client-urls=http://127.0.0.1:1",
        "--auto-tls",
        &data_dir,
    ];
    let server = Server::with(&flags, options).await;
    let (plain, tls) = (server.grpc[0], server.grpc[1]);
    let mut bad = Vec::new();
    for (address, bytes) in [
        (plain, &b"\x00\x01\x02\x03garbage\r\n\r\n"[..]),
        (plain, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        (plain, b"\x16\x03\x01\x00\x05hello"),
        (plain, b"GET /health HTTP/1.1\r\nHost: slow"),
        (plain, b"PR"),
        (plain, b""),
        (tls, b"GET / HTTP/1.1\r\n\r\n"),
        (tls, b"\x16\x03\x01\x02\x00"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        bad.push((stream, bytes));
    }
    assert!(server.get("/health").await.starts_with("HTTP/1.1 200"));
    assert_eq!(unimplemented(&server).await, "eddy: this RPC of etcd is not built yet");
    for (stream, _) in bad.drain(..7) {
        closed(stream).await;
    }
    // Half a TLS handshake has its own, longer limit; it must not hold up the end of the process.
    let (half, _) = bad.pop().unwrap();
    eddy_server::run::drain(&server.stop, server.tracker).await;
    closed(half).await;
}

#[tokio::test]
async fn thousands_of_idle_connections_cost_little() {
    const COUNT: usize = 2000;
    eddy_server::limits::raise_open_files();
    let server = Server::start(ANY_PORT).await;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap() * 1024
    };
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..COUNT {
        idle.push(TcpStream::connect(server.grpc[0]).await.unwrap());
    }
    eventually("all are accepted", || server.metrics.connections.get() >= COUNT as i64).await;
    assert!(server.get("/health").await.starts_with("HTTP/1.1 200"));
    // Both ends live in this process, and other tests run beside: a wide bound that a buffer per connection breaks.
    let each = resident().saturating_sub(before) / COUNT;
    assert!(each < 16 * 1024, "{each} bytes per idle connection");
    drop(idle);
    eventually("all are gone", || server.metrics.connections.get() == 0).await;
}

#[tokio::test]
async fn health_says_what_the_node_says() {
    let server = Server::start(ANY_PORT).await;
    let verbose = server.get("/readyz?verbose").await;
    assert_eq!(
        body(&verbose),
        "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n"
    );
    assert_eq!(body(&server.get("/livez?verbose=true").await), "[+]serializable_read ok\nok\n");
    assert_eq!(body(&server.get("/readyz/data_corruption").await), "ok\n");

    *server.node.alarms.lock() = vec![AlarmKind::NoSpace];
    let sick = server.get("/health").await;
    assert!(sick.starts_with("HTTP/1.1 503"), "{sick}");
    assert_eq!(body(&sick), "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");
    assert_eq!(body(&server.get("/health?exclude=NOSPACE").await), r#"{"health":"true","reason":""}"#);
    assert_eq!(body(&server.get("/readyz").await), "ok\n", "a full disk does not make a member unready");

    *server.node.alarms.lock() = vec![AlarmKind::Corrupt];
    assert!(server.get("/readyz").await.contains("[-]data_corruption failed: alarm activated: CORRUPT\n"));
    assert_eq!(body(&server.get("/readyz?exclude=data_corruption").await), "ok\n");
    server.node.alarms.lock().clear();

    *server.node.read_error.lock() = Some("etcdserver: no leader".to_owned());
    assert!(server.get("/health").await.contains(r#""reason":"RANGE ERROR:etcdserver: no leader""#));
    assert_eq!(body(&server.get("/health?serializable=true").await), r#"{"health":"true","reason":""}"#);
    assert!(server.get("/readyz").await.contains("[-]linearizable_read failed: etcdserver: no leader\n"));
    assert_eq!(body(&server.get("/livez").await), "ok\n");
    *server.node.read_error.lock() = None;

    *server.node.write_failure.lock() = Some("flush failed".to_owned());
    assert!(server.get("/health").await.contains(r#""reason":"READ ONLY:flush failed""#));
    assert!(server.get("/readyz").await.contains("[-]writable failed: flush failed\n"));
    assert!(server.get("/metrics").await.contains("\netcd_server_health_failures 3\n"));
    assert_eq!(body(&server.get("/livez").await), "ok\n", "a restart would not help");
    *server.node.restart_reason.lock() = Some("flush failed".to_owned());
    let dead = server.get("/livez").await;
    assert!(dead.starts_with("HTTP/1.1 503") && dead.contains("[-]needs_no_restart failed: flush failed\n"), "{dead}");
}

use super::*;

/// A node that answers each byte with the same byte. Node 0 dials node 1; the relays know of its process if one is named.
async fn echo(shape: Shape, dialler: Option<u32>) -> Result<(Relays, JoinSet<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = listener.local_addr()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                drop(tokio::io::copy(&mut read, &mut write).await);
            });
        }
    });
    let unused = SocketAddr::from(([127, 0, 0, 1], 1));
    let relays = Relays::start(&[unused, target], shape, 1).await?;
    if let Some(id) = dialler {
        relays.process(0, id);
    }
    Ok((relays, tasks))
}

async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Result<Duration> {
    let since = Instant::now();
    stream.write_all(bytes).await?;
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).await?;
    anyhow::ensure!(answer == bytes, "other bytes came back");
    Ok(since.elapsed())
}

#[tokio::test]
async fn a_round_trip_takes_at_least_the_delay_of_both_directions() -> Result<()> {
    let shape = Shape { delay: Duration::from_millis(40), jitter: Duration::from_millis(5), bytes_per_second: None };
    let (relays, _tasks) = echo(shape, Some(std::process::id())).await?;
    let mut stream = TcpStream::connect(relays.address(1)).await?;
    for _ in 0..3 {
        let took = exchange(&mut stream, b"x").await?;
        assert!(took >= Duration::from_millis(80), "{took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn bandwidth_is_a_floor_on_the_time_and_order_is_kept() -> Result<()> {
    let shape = Shape { jitter: Duration::from_millis(20), bytes_per_second: Some(1 << 20), ..Shape::default() };
    let (relays, _tasks) = echo(shape, Some(std::process::id())).await?;
    let mut stream = TcpStream::connect(relays.address(1)).await?;
    let bytes: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    // Written and read at once, so that neither end waits for the other.
    let (mut read, mut write) = stream.split();
    let since = Instant::now();
    let mut back = vec![0; bytes.len()];
    let (wrote, got) = tokio::join!(write.write_all(&bytes), read.read_exact(&mut back));
    wrote?;
    got?;
    assert!(back == bytes, "the order was not kept");
    assert!(since.elapsed() >= Duration::from_secs_f64(200_000.0 / f64::from(1 << 20)), "{:?}", since.elapsed());
    assert_eq!((relays.sent_bytes(0), relays.sent_bytes(1)), (200_000, 200_000));
    Ok(())
}

#[tokio::test]
async fn a_cut_link_holds_what_it_is_given_until_it_is_healed() -> Result<()> {
    let (relays, _tasks) = echo(Shape::default(), Some(std::process::id())).await?;
    let mut stream = TcpStream::connect(relays.address(1)).await?;
    exchange(&mut stream, b"before").await?;
    relays.cut([(0, 1), (1, 0)]);
    stream.write_all(b"held").await?;
    let mut answer = [0; 4];
    let nothing = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
    assert!(nothing.is_err(), "a cut link lets pass");
    relays.heal();
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"held");
    Ok(())
}

#[tokio::test]
async fn a_cut_in_one_direction_lets_the_other_pass() -> Result<()> {
    // Node 1 counts what reaches it, and says something of its own accord.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = listener.local_addr()?;
    let relays = Relays::start(&[SocketAddr::from(([127, 0, 0, 1], 1)), target], Shape::default(), 1).await?;
    relays.process(0, std::process::id());
    let mut zero = TcpStream::connect(relays.address(1)).await?;
    let (mut one, _) = listener.accept().await?;
    relays.cut([(0, 1)]);
    zero.write_all(b"a").await?;
    one.write_all(b"b").await?;
    let mut byte = [0];
    zero.read_exact(&mut byte).await?;
    assert_eq!(&byte, b"b");
    assert!(tokio::time::timeout(Duration::from_millis(100), one.read_exact(&mut byte)).await.is_err(), "it is cut");
    relays.heal();
    one.read_exact(&mut byte).await?;
    assert_eq!(&byte, b"a");
    Ok(())
}

#[tokio::test]
async fn where_all_links_are_cut_nobody_notices_and_all_bytes_arrive_later() -> Result<()> {
    let (relays, _tasks) = echo(Shape::default(), None).await?;
    let mut stream = TcpStream::connect(relays.address(1)).await?;
    exchange(&mut stream, b"before").await?;
    relays.cut_all();
    let mut new = TcpStream::connect(relays.address(1)).await?;
    stream.write_all(b"held").await?;
    new.write_all(b"new").await?;
    let mut answer = [0; 4];
    let nothing = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
    assert!(nothing.is_err(), "a cut link lets pass");
    relays.heal();
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"held");
    let mut answer = [0; 3];
    new.read_exact(&mut answer).await?;
    assert_eq!((&answer, relays.all_bytes()), (b"new", 2 * (6 + 4 + 3)));
    Ok(())
}

#[tokio::test]
async fn connections_are_ended_and_refused_until_it_is_healed() -> Result<()> {
    let (relays, _tasks) = echo(Shape::default(), None).await?;
    let mut stream = TcpStream::connect(relays.address(1)).await?;
    exchange(&mut stream, b"before").await?;
    relays.refuse();
    assert!(exchange(&mut stream, b"x").await.is_err(), "it is ended");
    let mut new = TcpStream::connect(relays.address(1)).await?;
    assert!(exchange(&mut new, b"x").await.is_err(), "it is refused");
    relays.heal();
    let mut new = TcpStream::connect(relays.address(1)).await?;
    exchange(&mut new, b"after").await?;
    Ok(())
}

#[test]
fn a_socket_is_found_in_the_kernels_list() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
         0: 0100007F:0050 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 20 4 30 10 -1\n   \
         1: 0100007F:C350 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1\n";
    assert_eq!(socket_inode(table, 50_000, 80), Some("4712".to_owned()));
    assert_eq!(socket_inode(table, 80, 50_000), Some("4711".to_owned()));
    assert_eq!(socket_inode(table, 80, 81), None);
}

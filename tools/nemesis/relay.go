package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Relays is a network on loopback: a TCP relay in front of each replica's peer port. Since all dial the same address of a
// replica (it is part of the membership), the relay asks the kernel which process a connection comes from, and so knows
// the ordered pair of each byte.
type Relays struct {
	mu      sync.Mutex
	changed *sync.Cond
	nodes   []*relayNode
	pids    map[int]int // process -> place
	cut     map[[2]int]bool
	reset   map[[2]int]bool
	conns   map[*relayConn]bool
	carried map[[2]int]int64 // bytes by ordered pair
	closed  bool
}

type relayNode struct {
	listener net.Listener
	target   string
}

type relayConn struct {
	from, to int
	ends     [2]net.Conn
}

func (c *relayConn) close() {
	for _, end := range c.ends {
		if end != nil {
			if tcp, ok := end.(*net.TCPConn); ok {
				tcp.SetLinger(0)
			}
			end.Close()
		}
	}
}

func newRelays() *Relays {
	r := &Relays{pids: map[int]int{}, cut: map[[2]int]bool{}, reset: map[[2]int]bool{}, conns: map[*relayConn]bool{}, carried: map[[2]int]int64{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *Relays) Add() (Place, error) {
	ports, err := freePorts(2)
	if err != nil {
		return Place{}, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Place{}, err
	}
	node := &relayNode{listener: listener, target: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	r.mu.Lock()
	place := len(r.nodes)
	r.nodes = append(r.nodes, node)
	r.mu.Unlock()
	go r.accept(place, node)
	return Place{
		ClientURL:  fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		PeerURL:    "http://" + listener.Addr().String(),
		ListenPeer: "http://" + node.target,
	}, nil
}

func (r *Relays) Process(place, pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for old, at := range r.pids {
		if at == place {
			delete(r.pids, old)
		}
	}
	r.pids[pid] = place
}

func (r *Relays) accept(to int, node *relayNode) {
	for {
		conn, err := node.listener.Accept()
		if err != nil {
			return
		}
		go r.carry(to, node, conn)
	}
}

// passes waits until bytes of the pair may pass; false when the connection is to end instead.
func (r *Relays) passes(conn *relayConn, pairs ...[2]int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.closed || !r.conns[conn] {
			return false
		}
		held := false
		for _, pair := range pairs {
			held = held || r.cut[pair]
		}
		if !held {
			return true
		}
		r.changed.Wait()
	}
}

func (r *Relays) carry(to int, node *relayNode, in net.Conn) {
	from, known := r.dialler(in)
	if !known {
		in.Close() // Its process is gone.
		return
	}
	conn := &relayConn{from: from, to: to, ends: [2]net.Conn{in, nil}}
	there, back := [2]int{from, to}, [2]int{to, from}
	r.mu.Lock()
	if r.closed || r.reset[there] || r.reset[back] {
		r.mu.Unlock()
		conn.close()
		return
	}
	r.conns[conn] = true
	r.mu.Unlock()
	defer r.forget(conn)
	if !r.passes(conn, there, back) {
		return
	}
	out, err := net.DialTimeout("tcp", node.target, 5*time.Second)
	if err != nil {
		return
	}
	r.mu.Lock()
	conn.ends[1] = out
	r.mu.Unlock()
	done := make(chan bool, 2)
	copying := func(src, dst net.Conn, pair [2]int) {
		r.copy(conn, src, dst, pair)
		done <- true
	}
	go copying(in, out, there)
	go copying(out, in, back)
	<-done
	r.forget(conn)
	<-done
}

func (r *Relays) copy(conn *relayConn, src, dst net.Conn, pair [2]int) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := src.Read(buffer)
		if n > 0 {
			if !r.passes(conn, pair) {
				return
			}
			r.mu.Lock()
			r.carried[pair] += int64(n)
			r.mu.Unlock()
			if _, err := dst.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *Relays) forget(conn *relayConn) {
	r.mu.Lock()
	delete(r.conns, conn)
	conn.close()
	r.changed.Broadcast()
	r.mu.Unlock()
}

func (r *Relays) Cut(from, to int, reset bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut[[2]int{from, to}] = true
	if reset {
		r.reset[[2]int{from, to}] = true
		for conn := range r.conns {
			if conn.from == from && conn.to == to || conn.from == to && conn.to == from {
				delete(r.conns, conn)
				conn.close()
			}
		}
	}
	r.changed.Broadcast()
	return nil
}

func (r *Relays) Heal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cut)
	clear(r.reset)
	r.changed.Broadcast()
	return nil
}

func (r *Relays) Sent(from int) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := int64(0)
	for pair, bytes := range r.carried {
		if pair[0] == from {
			sent += bytes
		}
	}
	return sent
}

// Carried is how many bytes one replica has sent to another.
func (r *Relays) Carried(from, to int) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.carried[[2]int{from, to}]
}

func (r *Relays) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, node := range r.nodes {
		node.listener.Close()
	}
	for conn := range r.conns {
		conn.close()
	}
	r.changed.Broadcast()
}

// dialler finds the replica whose process holds the other end of a connection.
func (r *Relays) dialler(conn net.Conn) (int, bool) {
	remote, local := conn.RemoteAddr().(*net.TCPAddr).Port, conn.LocalAddr().(*net.TCPAddr).Port
	inode := socketInode(remote, local)
	if inode == "" {
		return 0, false
	}
	r.mu.Lock()
	pids := make(map[int]int, len(r.pids))
	for pid, place := range r.pids {
		pids[pid] = place
	}
	r.mu.Unlock()
	for pid, place := range pids {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && target == "socket:["+inode+"]" {
				return place, true
			}
		}
	}
	return 0, false
}

// socketInode finds the socket on loopback between two ports, as the kernel lists it.
func socketInode(local, remote int) string {
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer file.Close()
	port := func(address string) int {
		_, hex, _ := strings.Cut(address, ":")
		number, _ := strconv.ParseInt(hex, 16, 32)
		return int(number)
	}
	lines := bufio.NewScanner(io.Reader(file))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && port(fields[1]) == local && port(fields[2]) == remote {
			return fields[9]
		}
	}
	return ""
}

func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

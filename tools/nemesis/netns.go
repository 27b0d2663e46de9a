package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// Spaces is a network of network namespaces, one for each replica, joined by a bridge on which this program has an
// address, too. The bridge has a namespace of its own, where no packet filter of the machine's (Docker's, say) sees it.
// Links are cut by the receiver's packet filter.
type Spaces struct {
	mu     sync.Mutex
	tag    string
	subnet string
	count  int
}

func command(args ...string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func commands(lines ...string) error {
	for _, line := range lines {
		if _, err := command(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func newSpaces(seed int64) (Network, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("network namespaces need root")
	}
	pid := os.Getpid()
	s := &Spaces{tag: fmt.Sprintf("nm%d", pid%100000), subnet: fmt.Sprintf("10.%d.%d", 200+pid/250%50, pid%250)}
	hub := "ip netns exec " + s.hub() + " "
	err := commands(
		"ip netns add "+s.hub(),
		hub+"ip link add bridge type bridge",
		hub+"ip link set bridge up",
		"ip link add "+s.tag+" type veth peer name root netns "+s.hub(),
		hub+"ip link set root master bridge up",
		"ip addr add "+s.subnet+".1/24 dev "+s.tag,
		"ip link set "+s.tag+" up",
	)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Spaces) space(place int) string { return fmt.Sprintf("%s-%d", s.tag, place) }
func (s *Spaces) hub() string            { return s.tag + "-hub" }
func (s *Spaces) address(place int) string {
	return fmt.Sprintf("%s.%d", s.subnet, 10+place)
}

func (s *Spaces) Add() (Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.count
	s.count++
	space, inside := s.space(place), "ip netns exec "+s.space(place)+" "
	err := commands(
		"ip netns add "+space,
		fmt.Sprintf("ip link add v%d netns %s type veth peer name eth0 netns %s", place, s.hub(), space),
		fmt.Sprintf("ip netns exec %s ip link set v%d master bridge up", s.hub(), place),
		inside+"ip addr add "+s.address(place)+"/24 dev eth0",
		inside+"ip link set eth0 up",
		inside+"ip link set lo up",
		inside+"nft add table inet nemesis",
		inside+"nft add set inet nemesis cut { type ipv4_addr ; }",
		inside+"nft add chain inet nemesis in { type filter hook input priority 0 ; }",
		inside+"nft add rule inet nemesis in ip saddr @cut drop",
	)
	if err != nil {
		return Place{}, err
	}
	return Place{
		ClientURL:  "http://" + s.address(place) + ":2379",
		PeerURL:    "http://" + s.address(place) + ":2380",
		ListenPeer: "http://" + s.address(place) + ":2380",
		Prefix:     strings.Fields("ip netns exec " + space),
	}, nil
}

// Cut drops packets. Connections hang; there is no way to reset them from outside.
func (s *Spaces) Cut(from, to int, _ bool) error {
	return commands(fmt.Sprintf("ip netns exec %s nft add element inet nemesis cut { %s }", s.space(to), s.address(from)))
}

func (s *Spaces) Heal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for place := range s.count {
		if err := commands("ip netns exec " + s.space(place) + " nft flush set inet nemesis cut"); err != nil {
			return err
		}
	}
	return nil
}

// Sent counts what came out of a namespace, to clients as well.
func (s *Spaces) Sent(from int) int64 {
	file := fmt.Sprintf("/sys/class/net/v%d/statistics/rx_bytes", from)
	text, _ := command("ip", "netns", "exec", s.hub(), "cat", file)
	bytes, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return bytes
}

func (s *Spaces) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	command("ip", "link", "del", s.tag)
	for place := range s.count {
		command("ip", "netns", "del", s.space(place))
	}
	command("ip", "netns", "del", s.hub())
}

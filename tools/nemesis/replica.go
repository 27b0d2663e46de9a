package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Replica is one eddy and what is known of its process.
type Replica struct {
	Place
	place  int
	name   string
	dir    string
	binary string
	list   string // of the initial cluster
	state  string // of the initial cluster
	flags  []string
	env    []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{}
	down   [][2]int64 // when it was not expected to serve, nanoseconds since the start
	up     bool
	gone   bool // removed from the cluster
	epoch  int  // of its private keys; a wiped disk begins another
	member string
}

// How long clients may take to find a replica that serves again.
const reconnectGrace = 3 * time.Second

// Longer than anything here takes on a busy machine.
const patience = 120 * time.Second

// spawn starts processes from one thread that never ends, since they are to die with the thread that started them.
var spawn = func() func(*exec.Cmd) error {
	type request struct {
		cmd  *exec.Cmd
		done chan error
	}
	requests := make(chan request)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.done <- r.cmd.Start()
		}
	}()
	return func(cmd *exec.Cmd) error {
		done := make(chan error, 1)
		requests <- request{cmd, done}
		return <-done
	}
}()

func (r *Replica) start(network Network) error {
	log, err := os.OpenFile(r.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{}, r.Prefix...)
	if len(r.env) > 0 {
		args = append(append(args, "env"), r.env...)
	}
	args = append(args, r.binary,
		"--name="+r.name, "--data-dir="+r.dir,
		"--listen-client-urls="+r.ClientURL, "--advertise-client-urls="+r.ClientURL,
		"--listen-peer-urls="+r.ListenPeer, "--initial-advertise-peer-urls="+r.PeerURL,
		"--initial-cluster="+r.list, "--initial-cluster-state="+r.state)
	args = append(args, r.flags...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := spawn(cmd); err != nil {
		return err
	}
	ended := make(chan struct{})
	r.mu.Lock()
	r.cmd, r.ended = cmd, ended
	r.mu.Unlock()
	if known, ok := network.(identifies); ok {
		known.Process(r.place, cmd.Process.Pid)
	}
	go func() {
		cmd.Wait()
		close(ended)
	}()
	return nil
}

// ready waits until it serves.
func (r *Replica) ready() error {
	err := eventually(func() error {
		r.mu.Lock()
		ended := r.ended
		r.mu.Unlock()
		select {
		case <-ended:
			return errors.New("the process has ended: " + r.logTail())
		default:
		}
		response, err := httpClient.Get(r.ClientURL + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(response.Body)
			return fmt.Errorf("%s: %s", response.Status, text)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w", r.name, err)
	}
	r.markUp()
	return nil
}

func (r *Replica) markDown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up {
		r.up = false
		r.down = append(r.down, [2]int64{now(), 1 << 62})
	}
}

func (r *Replica) markUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = true
	if last := len(r.down) - 1; last >= 0 && r.down[last][1] == 1<<62 {
		r.down[last][1] = now() + int64(reconnectGrace)
	}
}

func (r *Replica) serves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up && !r.gone
}

func (r *Replica) isGone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
}

// wasDown says whether it was not expected to serve at some moment of an interval.
func (r *Replica) wasDown(from, to int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, interval := range r.down {
		if from <= interval[1] && to >= interval[0] {
			return true
		}
	}
	return false
}

func (r *Replica) signal(signal syscall.Signal) { r.cmd.Process.Signal(signal) }

func (r *Replica) kill() {
	r.markDown()
	r.signal(syscall.SIGKILL)
	<-r.ended
}

func (r *Replica) logTail() string {
	text, _ := os.ReadFile(r.dir + ".log")
	return string(text[max(0, len(text)-600):])
}

// rss is the resident memory of the process, bytes.
func (r *Replica) rss() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

var httpClient = &http.Client{Timeout: 5 * time.Second}

// Status is what /eddy/v1/status says.
type Status struct {
	MemberID      string   `json:"member_id"`
	Name          string   `json:"name"`
	Birth         string   `json:"birth"`
	Revision      int64    `json:"revision"`
	StateHash     string   `json:"state_hash"`
	UnsettledKeys int      `json:"unsettled_keys"`
	Vector        []Dot    `json:"vector"`
	Alarms        []string `json:"alarms"`
	WritesRefused *string  `json:"writes_refused"`
	Peers         []struct {
		Name            string  `json:"name"`
		Connected       bool    `json:"connected"`
		State           string  `json:"state"`
		EntriesBehind   int     `json:"entries_behind"`
		Error           string  `json:"error"`
		FirstDifference *string `json:"first_difference"`
	} `json:"peers"`
}

type Dot struct {
	Member string `json:"member_id"`
	Birth  string `json:"birth"`
	Seq    int64  `json:"seq"`
}

func (s *Status) vector() string {
	var dots []string
	for _, dot := range s.Vector {
		dots = append(dots, fmt.Sprintf("%s/%s:%d", dot.Member, dot.Birth, dot.Seq))
	}
	sort.Strings(dots)
	return strings.Join(dots, " ")
}

// covers says whether everything in the vector of another is in this one's.
func (s *Status) covers(other *Status) bool {
	has := map[[2]string]int64{}
	for _, dot := range s.Vector {
		has[[2]string{dot.Member, dot.Birth}] = dot.Seq
	}
	for _, dot := range other.Vector {
		if has[[2]string{dot.Member, dot.Birth}] < dot.Seq {
			return false
		}
	}
	return true
}

func (r *Replica) status() (*Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.ClientURL+"/eddy/v1/status", nil)
	if err != nil {
		return nil, err
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	status := new(Status)
	return status, json.NewDecoder(response.Body).Decode(status)
}

// unconnected waits until the replica has noticed that it has no peer.
func (r *Replica) unconnected() error {
	return eventually(func() error {
		s, err := r.status()
		if err != nil {
			return err
		}
		for _, p := range s.Peers {
			if p.Connected {
				return fmt.Errorf("%s still believes that it is connected to %s", r.name, p.Name)
			}
		}
		return nil
	})
}

// eventually waits until something holds; the last reason why not is returned.
func eventually(holds func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := holds()
		if err == nil || time.Now().After(deadline) || stopped() {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func wipe(dir string) error {
	if !strings.Contains(filepath.Base(filepath.Dir(dir)), "eddy-nemesis-") {
		return fmt.Errorf("%s is not ours", dir)
	}
	return os.RemoveAll(dir)
}

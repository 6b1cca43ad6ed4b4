#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a tiny byte-level GQA LLaMA (RMSNorm, SwiGLU, interleaved RoPE, tied embeddings) on local text; export safetensors + GGUF.
 H200:  python3 train_bytelm.py --text DIR --out DIR2 --preset h200 --seconds 480
 CPU :  python3 train_bytelm.py --text DIR --out DIR2 --preset cpu  --seconds 300
Vocab 259: bytes 0..255, 256=BOS, 257=EOS, 258=PAD. Runs on torch 1.13 (no SDPA, CPU) and 2.x (SDPA, bf16, compile)."""
import argparse,glob,json,math,os,random,struct,time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
P=argparse.ArgumentParser(); A=P.add_argument
A('--text',required=True); A('--out',required=True); A('--preset',default='h200'); A('--seconds',type=float,default=480); A('--seed',type=int,default=1); A('--lr',type=float,default=0)
a=P.parse_args(); torch.manual_seed(a.seed); rng=random.Random(a.seed)
# stages: (context, batch, share of the time budget)
PRE={'h200':dict(dim=384,layers=6,heads=6,kv=2,hd=64,ffn=768,theta=1e6,lr=2e-3,stages=[(2048,64,.34),(8192,16,.18),(32768,4,.22),(131072,1,.26)]),
     'cpu2':dict(dim=192,layers=4,heads=4,kv=2,hd=64,ffn=384,theta=1e5,lr=3e-3,stages=[(256,8,.65),(1024,2,.35)]),
     'cpu': dict(dim=128,layers=3,heads=4,kv=2,hd=32,ffn=256,theta=1e4,lr=3e-3,stages=[(128,16,.6),(512,4,.4)])}
C=PRE[a.preset]; C['vocab']=259; C['ctx']=C['stages'][-1][0]; C['eps']=1e-5; dev='cuda' if torch.cuda.is_available() else 'cpu'; V2=hasattr(F,'scaled_dot_product_attention')
if dev=='cpu': torch.set_num_threads(int(os.environ.get('THREADS','1')))
# ---- data: every *.txt is one stream; its last 5 % is held out
tr,va=[],[]
for f in sorted(glob.glob(os.path.join(a.text,'*.txt'))):
    d=np.frombuffer(open(f,'rb').read(),np.uint8); n=int(len(d)*.95); tr.append(d[:n]); va.append(d[n:]); print(os.path.basename(f),len(d))
va=[np.concatenate(va)]   # one held-out stream, long enough not to repeat itself
wt=np.array([len(d) for d in tr],float)**.7; wt/=wt.sum()     # temper big files
NAMES='Harriet Edmund Fanny Anne Elinor Marianne Emma George Henry Catherine Louisa Walter Jane Charles Mary William Lucy Robert Maria Thomas'.split()
THING='carriage letter garden bonnet horse parlour cottage piano ribbon orchard bridge lantern key watch ring box map sword ledger coin'.split()
def window(T,needles=True,src=None):
    d=src if src is not None else tr[np.random.choice(len(tr),p=wt)]
    parts=[]; need=T+1; w=np.zeros(need,np.float32)+1.
    while need>0:
        i=rng.randrange(max(1,len(d)-need)); c=bytes(d[i:i+need]); parts.append(c); need-=len(c)
    b=bytearray(b''.join(parts))
    if needles and rng.random()<.7:                             # long-range recall: write memos, ask for them later, anywhere in the window
        k=rng.randint(1,max(1,min(24,T//256))); used=[]
        for who,what in rng.sample([(x,y) for x in NAMES for y in THING],k):
            num='%05d'%rng.randrange(100000); m=f'\n[memo] The number of {who}\'s {what} is {num}.\n'.encode(); q=f'\n[recall] The number of {who}\'s {what} is {num}.\n'.encode()
            if len(m)+len(q)+4>T//2: continue
            for _ in range(8):                                  # keep memos and questions from overwriting each other
                p=rng.randrange(0,T-len(m)-len(q)); s=rng.randrange(p+len(m),T+1-len(q)+1)
                if all(e<=p or p+len(m)<=u for u,e in used) and all(e<=s or s+len(q)<=u for u,e in used): break
            else: continue
            used+=[(p,p+len(m)),(s,s+len(q))]; b[p:p+len(m)]=m; b[s:s+len(q)]=q
            o=q.index(num.encode()); w[s+o:s+o+5]=4.
    x=np.frombuffer(bytes(b),np.uint8).astype(np.int64)
    return x,w
def batch(T,B,needles=True,src=None):
    X=[window(T,needles,src) for _ in range(B)]; x=torch.from_numpy(np.stack([q[0] for q in X])); w=torch.from_numpy(np.stack([q[1] for q in X]))
    x,w=(x.pin_memory().to(dev,non_blocking=True),w.pin_memory().to(dev,non_blocking=True)) if dev=='cuda' else (x,w); return x[:,:-1],x[:,1:],w[:,1:]
# ---- model
class Norm(nn.Module):
    def __init__(s,d): super().__init__(); s.weight=nn.Parameter(torch.ones(d))
    def forward(s,x): y=x.float(); return (y*torch.rsqrt(y.pow(2).mean(-1,keepdim=True)+C['eps'])).type_as(x)*s.weight.type_as(x)
def rope(x,co,si):  # interleaved pairs, as llama2.c / GGUF "llama"
    u,v=x.float().reshape(*x.shape[:-1],-1,2).unbind(-1); return torch.stack([u*co-v*si,u*si+v*co],-1).flatten(-2).type_as(x)
class Block(nn.Module):
    def __init__(s):
        super().__init__(); d,h,k,e,f=C['dim'],C['heads'],C['kv'],C['hd'],C['ffn']; L=lambda i,o:nn.Linear(i,o,bias=False)
        s.attn_norm=Norm(d); s.attn_q=L(d,h*e); s.attn_k=L(d,k*e); s.attn_v=L(d,k*e); s.attn_output=L(h*e,d); s.ffn_norm=Norm(d); s.ffn_gate=L(d,f); s.ffn_up=L(d,f); s.ffn_down=L(f,d)
    def forward(s,x,co,si):
        B,T,_=x.shape; h,k,e=C['heads'],C['kv'],C['hd']; y=s.attn_norm(x)
        q=rope(s.attn_q(y).view(B,T,h,e).transpose(1,2),co,si); K=rope(s.attn_k(y).view(B,T,k,e).transpose(1,2),co,si); v=s.attn_v(y).view(B,T,k,e).transpose(1,2)
        K=K.repeat_interleave(h//k,1); v=v.repeat_interleave(h//k,1)
        if V2: o=F.scaled_dot_product_attention(q,K,v,is_causal=True)
        else:
            m=torch.full((T,T),-1e30,device=x.device).triu(1); o=((q@K.transpose(-1,-2)).float()/math.sqrt(e)+m).softmax(-1).type_as(v)@v
        x=x+s.attn_output(o.transpose(1,2).reshape(B,T,h*e)); y=s.ffn_norm(x); return x+s.ffn_down(F.silu(s.ffn_gate(y))*s.ffn_up(y))
class LM(nn.Module):
    def __init__(s):
        super().__init__(); s.token_embd=nn.Embedding(C['vocab'],C['dim']); s.blk=nn.ModuleList([Block() for _ in range(C['layers'])]); s.output_norm=Norm(C['dim'])
        for n,p in s.named_parameters():
            if p.dim()==2: nn.init.normal_(p,std=.02/(math.sqrt(2*C['layers']) if 'output' in n or 'down' in n else 1))
    def forward(s,x):
        T=x.shape[1]; f=1./C['theta']**(torch.arange(0,C['hd'],2,device=x.device).float()/C['hd']); t=torch.arange(T,device=x.device).float()[:,None]*f; co,si=t.cos(),t.sin()
        h=s.token_embd(x)
        for b in s.blk: h=b(h,co,si)
        return F.linear(s.output_norm(h),s.token_embd.weight)
m=LM().to(dev); N=sum(p.numel() for p in m.parameters()); print('params',N,'device',dev,'torch',torch.__version__,C)
dec=[p for p in m.parameters() if p.dim()==2]; nod=[p for p in m.parameters() if p.dim()<2]
lr0=a.lr or C['lr']; opt=torch.optim.AdamW([{'params':dec,'weight_decay':.1},{'params':nod,'weight_decay':0}],lr=lr0,betas=(.9,.95),**({'fused':True} if dev=='cuda' else {}))
net=torch.compile(m,dynamic=False) if dev=='cuda' and V2 else m
import contextlib
amp=(lambda:torch.autocast('cuda',torch.bfloat16)) if dev=='cuda' else contextlib.nullcontext
def lossf(x,y,w,f=None):
    with amp(): lg=(net if f is None else f)(x)
    l=F.cross_entropy(lg.float().reshape(-1,C['vocab']),y.reshape(-1),reduction='none').view_as(w); return l
@torch.no_grad()
def heldout(T,n=8):   # bits per byte on held-out text, and recall accuracy of the 5 digits when the memo is T-200 bytes back
    s=0.
    for _ in range(n):
        x,y,w=batch(T,1,False,va[rng.randrange(len(va))]); s+=lossf(x,y,w,m).mean().item()/math.log(2)/n
    ok=0
    for _ in range(n):
        x,w=window(T,False,va[rng.randrange(len(va))]); b=bytearray(bytes(x.astype(np.uint8))); num=b'%05d'%rng.randrange(100000); who,what=rng.choice(NAMES).encode(),rng.choice(THING).encode()
        me=b"\n[memo] The number of "+who+b"'s "+what+b" is "+num+b".\n"; q=b"\n[recall] The number of "+who+b"'s "+what+b" is "+num+b"."; p=rng.randrange(0,max(1,T//8)); b[p:p+len(me)]=me; b[T+1-len(q):T+1]=q
        z=torch.tensor(list(b),device=dev)[None]
        with amp(): pr=m(z[:,:-1]).argmax(-1)[0,-6:-1]
        ok+=(pr==z[0,-6:-1]).float().mean().item()/n
    return s,ok
class Stream(torch.utils.data.IterableDataset):
    def __init__(s,T,B): s.T,s.B=T,B
    def __iter__(s):
        wi=torch.utils.data.get_worker_info(); sd=(a.seed*1000003+s.T*31+(wi.id if wi else 0))%(2**31); rng.seed(sd); np.random.seed(sd)
        while True:
            X=[window(s.T) for _ in range(s.B)]; yield torch.from_numpy(np.stack([q[0] for q in X])),torch.from_numpy(np.stack([q[1] for q in X]))
def feed(T,B):
    if dev!='cuda':
        while True: yield batch(T,B)
    it=iter(torch.utils.data.DataLoader(Stream(T,B),batch_size=None,num_workers=12,prefetch_factor=4,pin_memory=True))
    for x,w in it: x=x.to(dev,non_blocking=True); w=w.to(dev,non_blocking=True); yield x[:,:-1],x[:,1:],w[:,1:]
t0=time.time(); step=0; tot=a.seconds; tokens=0; log=[]
for si,(T,B,share) in enumerate(C['stages']):
    src_=feed(T,B); next(src_); ts=time.time(); dur=tot*share; n=0
    while time.time()-ts<dur:
        g=min(1.,(time.time()-t0)/tot); lr=lr0*min(1,(step+1)/100)*(.5*(1+math.cos(math.pi*g))*.95+.05)
        for pg in opt.param_groups: pg['lr']=lr
        x,y,w=next(src_); l=lossf(x,y,w,net if T<=8192 else m); L=(l*w).sum()/w.sum(); opt.zero_grad(set_to_none=True); L.backward(); nn.utils.clip_grad_norm_(m.parameters(),1.); opt.step(); step+=1; n+=1; tokens+=x.numel()
        if n%(50 if dev=='cpu' else 200)==1: print(f'stage {si} T={T} step {step} {time.time()-t0:.0f}s tok {tokens/1e6:.1f}M loss {L.item():.3f}',flush=True)
    bpb,rc=heldout(T); print(f'== stage {si} ctx {T}: held-out {bpb:.3f} bits/byte, recall {rc*100:.0f}% of digits, {n} steps',flush=True); log.append(dict(ctx=T,bpb=bpb,recall=rc,steps=n))
final=[]
for T,_,_ in C['stages']:
    bpb,rc=heldout(T,16); print(f'== final ctx {T}: held-out {bpb:.3f} bits/byte, recall {rc*100:.0f}% of digits',flush=True); final.append(dict(ctx=T,bpb=bpb,recall=rc))
# ---- export
os.makedirs(a.out,exist_ok=True); half=torch.bfloat16 if dev=='cuda' else torch.float32; fn=[]
sd={k:v.detach().cpu() for k,v in m.state_dict().items()}
def raw(t): t=t.contiguous(); return t.view(torch.int16).numpy().tobytes() if t.dtype==torch.bfloat16 else t.numpy().tobytes()
def st_write(path,sd,dt):
    h={'__metadata__':{'config':json.dumps(C),'train':json.dumps(dict(tokens=tokens,steps=step,log=log))}}; o=0; bl=[]
    for k,v in sd.items():
        v=v.float() if v.dim()==1 else v.to(dt); b=raw(v); h[k]={'dtype':'BF16' if v.dtype==torch.bfloat16 else 'F32','shape':list(v.shape),'data_offsets':[o,o+len(b)]}; o+=len(b); bl.append(b)
    j=json.dumps(h).encode(); j+=b' '*(-len(j)%8); open(path,'wb').write(struct.pack('<Q',len(j))+j+b''.join(bl)); print(path,os.path.getsize(path))
def gguf_write(path,sd,dt):
    S=lambda x:(lambda b:struct.pack('<Q',len(b))+b)(x.encode()); kv=[]
    U=lambda k,v:kv.append(S(k)+struct.pack('<II',4,v)); R=lambda k,v:kv.append(S(k)+struct.pack('<If',6,v)); T=lambda k,v:kv.append(S(k)+struct.pack('<I',8)+S(v)); Ar=lambda k,t,i:kv.append(S(k)+struct.pack('<IIQ',9,t,len(i))+b''.join(i)); Bo=lambda k,v:kv.append(S(k)+struct.pack('<IB',7,v))
    T('general.architecture','llama'); T('general.name','bytelm'); U('llama.context_length',C['ctx']); U('llama.embedding_length',C['dim']); U('llama.block_count',C['layers']); U('llama.feed_forward_length',C['ffn']); U('llama.attention.head_count',C['heads']); U('llama.attention.head_count_kv',C['kv'])
    U('llama.attention.key_length',C['hd']); U('llama.attention.value_length',C['hd']); U('llama.rope.dimension_count',C['hd']); R('llama.rope.freq_base',C['theta']); R('llama.attention.layer_norm_rms_epsilon',C['eps']); U('llama.vocab_size',C['vocab'])
    keep=list(range(33,127))+list(range(161,173))+list(range(174,256)); n=0; tk=[]   # GPT-2's byte <-> printable map, no merges: one token a byte
    for b in range(256):
        if b in keep: tk.append(chr(b))
        else: tk.append(chr(256+n)); n+=1
    tk+=['<|bos|>','<|endoftext|>','<|pad|>']
    T('tokenizer.ggml.model','gpt2'); T('tokenizer.ggml.pre','gpt-2'); Ar('tokenizer.ggml.tokens',8,[S(t) for t in tk]); Ar('tokenizer.ggml.token_type',5,[struct.pack('<i',1 if i<256 else 3) for i in range(259)]); Ar('tokenizer.ggml.merges',8,[S('\u0100 \u0100')])
    U('tokenizer.ggml.bos_token_id',256); U('tokenizer.ggml.eos_token_id',257); U('tokenizer.ggml.padding_token_id',258); Bo('tokenizer.ggml.add_bos_token',0)
    inf=b''; dat=bytearray()
    for k,v in sd.items():
        v=v.float() if v.dim()==1 else v.to(dt); inf+=S(k)+struct.pack('<I',v.dim())+b''.join(struct.pack('<Q',d) for d in list(v.shape)[::-1])+struct.pack('<IQ',30 if v.dtype==torch.bfloat16 else 0,len(dat)); dat+=raw(v); dat+=b'\0'*(-len(dat)%32)
    h=b'GGUF'+struct.pack('<IQQ',3,len(sd),len(kv))+b''.join(kv)+inf; h+=b'\0'*(-len(h)%32); open(path,'wb').write(h+dat); print(path,os.path.getsize(path))
st_write(os.path.join(a.out,'bytelm.safetensors'),sd,half); gguf_write(os.path.join(a.out,'bytelm.gguf'),sd,half); json.dump(dict(config=C,params=N,tokens=tokens,steps=step,log=log,final=final),open(os.path.join(a.out,'bytelm.json'),'w'),indent=1)
# ---- sample: greedy from a held-out prompt
with torch.no_grad():
    x=list(b'"My dear Mr. Bennet," said his lady to him one day, "have you'); 
    for _ in range(200): x.append(int(m(torch.tensor(x[-C['stages'][0][0]:],device=dev)[None])[0,-1,:256].argmax()))
    print(bytes(x).decode('utf8','replace'))

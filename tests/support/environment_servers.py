"""Servers that stand for the other side of OpenEnv and AgentGym, after the published protocols.

The facts are those of `training/environments/adapters/openenv.py` and `agentgym.py`; the game is
`GymLamp` behind each.
"""

from typing import Any, Literal

from fastapi import FastAPI, Response, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, ValidationError

from tests.support.own_environments import GymLamp


class LampAction(BaseModel):
    """OpenEnv's actions refuse unknown fields, and have metadata."""

    model_config = ConfigDict(extra="forbid")

    command: str
    metadata: dict[str, Any] = {}


def openenv_app(*, most_sessions: int = 8) -> FastAPI:
    """A server of OpenEnv's WebSocket protocol, one session per connection."""
    app = FastAPI()
    sessions: set[int] = set()

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        await socket.accept()
        if len(sessions) >= most_sessions:
            full = {"message": "Server at capacity", "code": "CAPACITY_REACHED"}
            await socket.send_json({"type": "error", "data": full})
            await socket.close()
            return
        sessions.add(id(socket))
        lamp = GymLamp()
        try:
            while True:
                message = await socket.receive_json()
                if message["type"] == "close":
                    return
                await socket.send_json(_openenv_answer(lamp, message))
        except WebSocketDisconnect:
            pass
        finally:
            sessions.discard(id(socket))

    return app


def _openenv_answer(lamp: GymLamp, message: dict[str, Any]) -> dict[str, Any]:
    match message["type"]:
        case "reset":
            text, _ = lamp.reset(seed=message["data"].get("seed"))
            return _observation(text, None, done=False)
        case "step":
            try:
                action = LampAction.model_validate(message["data"])
            except ValidationError as error:
                data = {"message": "Invalid message", "code": "VALIDATION_ERROR"}
                return {"type": "error", "data": data | {"errors": len(error.errors())}}
            if action.command == "explode":
                return {"type": "error", "data": {"message": "boom", "code": "EXECUTION_ERROR"}}
            text, reward, terminated, truncated, _ = lamp.step(action.command)
            return _observation(text, reward, done=terminated or truncated)
    known = {"message": f"Unknown message type: {message['type']}", "code": "UNKNOWN_TYPE"}
    return {"type": "error", "data": known}


def _observation(text: str, reward: float | None, *, done: bool) -> dict[str, Any]:
    observation = {"text": text, "lamps": 3}
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def agentgym_app(family: Literal["id", "env_idx"], *, busy: int = 0) -> FastAPI:
    """A server of either of AgentGym's families.

    Args:
        busy: number of steps that are answered by 503 first.
    """
    app = FastAPI()
    lamps: dict[int, GymLamp] = {}
    texts: dict[int, str] = {}
    left = [busy]

    def changed(number: int, text: str, reward: float, *, done: bool) -> dict[str, Any]:
        texts[number] = text
        named = "observation" if family == "id" else "state"
        return {named: text, "reward": reward, "done": done}

    @app.post("/create")
    def create() -> Any:
        number = len(lamps)
        lamps[number] = GymLamp()
        return {"id": number} if family == "id" else number

    @app.post("/reset")
    def reset(body: dict[str, Any]) -> Any:
        number = body[family]
        if number not in lamps:
            return {"error": f"The id {number} is not valid."}
        index = body["data_idx" if family == "id" else "item_id"]
        text, _ = lamps[number].reset(seed=index)
        answer = changed(number, text, 0, done=False)
        return {"id": number, **answer} if family == "id" else [text, None]

    @app.post("/step")
    def step(body: dict[str, Any]) -> Any:
        if left[0]:
            left[0] -= 1
            return Response(status_code=503)
        text, reward, terminated, truncated, _ = lamps[body[family]].step(body["action"])
        return changed(body[family], text, reward, done=terminated or truncated)

    @app.get("/observation")
    def observation(id: int | None = None, env_idx: int | None = None) -> str:
        number = id if family == "id" else env_idx
        assert number is not None
        return texts[number]

    if family == "id":

        @app.post("/close")
        def close(body: dict[str, Any]) -> dict[str, bool]:
            lamps.pop(body["id"])
            return {"closed": True}

    return app

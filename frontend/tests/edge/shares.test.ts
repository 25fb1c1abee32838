import { describe, expect, it } from "vitest";
import { ApiError } from "../../src/edge/api";
import { Shares } from "../../src/edge/shares";

const ROW = { id: "share_1", object: "conversation.share", created_at: 10, expires_at: 20, url_path: "/s/tok", token: "tok" };
const SHARE = { id: "share_1", url: "https://here.test/s/tok", sharedAt: 10_000, endsAt: 20_000 };

function answering(answer: Record<string, unknown> | ApiError): { shares: Shares; requests: unknown[][] } {
  const requests: unknown[][] = [];
  const api = {
    request: (...request: [string, string, object | null]) => {
      requests.push(request);
      return answer instanceof ApiError ? Promise.reject(answer) : Promise.resolve(answer);
    },
  };
  return { shares: new Shares(api, "https://here.test"), requests };
}

function refusal(status: number, code: string): ApiError {
  return new ApiError(status, { code, message: code }, null);
}

describe("links", () => {
  it("are made for as long as is said, else as the server thinks best", async () => {
    const { shares, requests } = answering(ROW);
    expect(await shares.share("conv_1", 60)).toEqual(SHARE);
    expect(await shares.share("conv_1")).toEqual(SHARE);
    expect(requests).toEqual([["POST", "/v1/conversations/conv_1/share", { expires_in: 60 }], ["POST", "/v1/conversations/conv_1/share", {}]]);
  });

  it("are refused as the server refuses them", async () => {
    await expect(answering(refusal(404, "not_offered")).shares.share("conv_1")).rejects.toThrow("not_offered");
    await expect(answering({ id: "share_1" }).shares.share("conv_1")).rejects.toMatchObject({ status: 502 });
  });

  it("are listed, without rows that cannot be read", async () => {
    const { shares, requests } = answering({ object: "list", data: [ROW, { id: 5 }] });
    expect(await shares.shares("conv_1")).toEqual([SHARE]);
    expect(requests).toEqual([["GET", "/v1/conversations/conv_1/shares", null]]);
  });

  it("are revoked, and one that is not there is as good as that", async () => {
    const { shares, requests } = answering({ deleted: true });
    await shares.unshare("conv_1", "share/1");
    expect(requests).toEqual([["DELETE", "/v1/conversations/conv_1/shares/share%2F1", null]]);
    await answering(refusal(404, "share_not_found")).shares.unshare("conv_1", "share_1");
    await expect(answering(refusal(404, "conversation_not_found")).shares.unshare("conv_1", "share_1")).rejects.toThrow("conversation_not_found");
  });
});
